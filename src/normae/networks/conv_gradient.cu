// The gradient of sum_i (v_energy_i E_i + v_latent_i z_i) by the weights: a block takes one image after the other.
//
// Those of convolutions and slopes are summed over a block's images. A dense layer's is a matrix product over all images
// of its input and of v behind it, which go to `vectors`: A5, v, hidden of the encoder, v, z, v, hidden of the decoder,
// v at A9. Compiled behind conv_network.cu.

KERNEL gradient(const float* x, const float* v_energy, const float* v_latent, float* out, float* vectors,
                const u16* half, const float* full, int n, int weight_stride, int out_stride) {
    Shared& s = SHARED;
    int member = BLOCK_Y;
    Weights w = {half + (long long)member * weight_stride, full + (long long)member * weight_stride};
    prepare(s, w);
    Gather to = {out + (long long)(member * BLOCKS_X + BLOCK_X) * out_stride, 0.0f, {}};
    for (int image = BLOCK_X; image < n; image += BLOCKS_X) {
        long long sample = (long long)member * n + image;
        float* vector = vectors + sample * (2 * WINDOWS + 4 * HP + 2 * ZP);
        for (int pixel = TID; pixel < PIXELS; pixel += THREADS)
            s.plane[0][place_of(pixel, SIDE)] = x[sample * PIXELS + pixel];
        SYNC();
        float squares, largest, factor = encode(s, w);
        decode<false>(s, w, s.latent, factor, squares, largest);
        to.factor = v_energy[sample] * (-2.0f / PIXELS);
        decode_back<false>(s, w, largest, &to);
        float* at = vector + WINDOWS;
        for (int pixel = TID; pixel < WINDOWS; pixel += THREADS) {
            int place = place_of(pixel, HALF);
            vector[pixel] = s.inner[A5][place];
            at[4 * HP + 2 * ZP + pixel] = s.inner[V][place] * to.factor;
        }
        for (int j = TID; j < HP; j += THREADS) {
            at[2 * HP + 2 * ZP + j] = s.vector[j] * to.factor;
            at[3 * HP + 2 * ZP + j] = prelu(s.hidden_d[0][j], s.alpha[6]);
        }
        if (TID < ZP) s.pulled[TID] = s.pulled[TID] * to.factor + (TID < Z ? v_latent[sample * Z + TID] : 0.0f);
        SYNC();
        encode_back(s, w, factor, &to);
        for (int j = TID; j < HP; j += THREADS) {
            at[j] = s.vector[j];
            at[HP + j] = prelu(s.hidden_e[j], s.alpha[5]);
        }
        float along = along_latent(s, factor);
        if (TID < ZP) {
            at[2 * HP + TID] = (s.pulled[TID] - along * s.latent[TID]) * factor;
            at[2 * HP + ZP + TID] = s.latent[TID] * factor;
        }
        SYNC();
    }
    for (int k = 0; k < 11; k++) {
        float total = block_sum(s, to.slopes[k]);
        SYNC();
        if (TID == 0) *to.slope(k) = total;
    }
}
