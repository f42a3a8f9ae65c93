// Energies and latent points of images: a block takes one image after the other. Compiled behind conv_network.cu.

KERNEL energies(const float* x, float* values, float* latents, const u16* half, const float* full, int n, int weight_stride) {
    Shared& s = SHARED;
    int member = BLOCK_Y;
    Weights w = {half + (long long)member * weight_stride, full + (long long)member * weight_stride};
    prepare(s, w);
    for (int image = BLOCK_X; image < n; image += BLOCKS_X) {
        long long sample = (long long)member * n + image;
        for (int pixel = TID; pixel < PIXELS; pixel += THREADS)
            s.plane[0][place_of(pixel, SIDE)] = x[sample * PIXELS + pixel];
        SYNC();
        float squares, largest, factor = encode(s, w);
        decode<false>(s, w, s.latent, factor, squares, largest);
        if (TID == 0) values[sample] = squares / PIXELS;
        if (TID < Z) latents[sample * Z + TID] = s.latent[TID] * factor;
    }
}
