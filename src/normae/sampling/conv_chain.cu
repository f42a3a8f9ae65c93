// A Langevin chain of the convolutional autoencoder: one block takes one image, or one latent point, through all steps.
//
// Compiled behind conv_network.cu with METROPOLIS, ON, CLIP and ANNEAL.

#define FREE 0
#define CLAMP 1
#define REJECT 2
#define GEODESIC 3
#define PROJECT 4
#define BY_VALUE 1
#define BY_ROW 2
#define BY_NORM 3

// Limit the gradient in plane 4 by value, by the norm of each row, or by its norm.
DEVICE void clip_image(Shared& s, float clip) {
    float* grad = s.plane[LATENT ? 2 : 4];
    float total = 0.0f;
    if (CLIP == BY_NORM) {
        for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
            float g = grad[place_of(pixel, SIDE)];
            total += g * g;
        }
        total = block_reduce<false>(s, total);
    }
    for (int row = TID / 32; row < SIDE; row += WARPS) {
        float square = total;
        if (CLIP == BY_ROW) {
            square = 0.0f;
            for (int c = TID % 32; c < SIDE; c += 32) {
                float g = grad[(row + 1) * ROW + c + 1];
                square += g * g;
            }
            square = warp_sum(square, 32);
        }
        float factor = clip / larger(sqrtf(square), clip);
        for (int c = TID % 32; c < SIDE; c += 32) {
            float& g = grad[(row + 1) * ROW + c + 1];
            g = CLIP == BY_VALUE ? (g > clip ? clip : g < -clip ? -clip : g) : g * factor;
        }
    }
    SYNC();
}

// Energy and clipped gradient: at the latent point z0, to grad; or at plane 0, to plane 4.
DEVICE float value_and_grad(Shared& s, const Weights& w, const float z0[ZP], float grad[ZP], float clip) {
    float squares, largest, unused, z[ZP], v_z[ZP];
    if (LATENT) decode<true>(s, w, z0, unused, unused);
    float length = encode(s, w, z);
    decode<false>(s, w, z, squares, largest);
    decode_back<false>(s, w, largest, v_z, 0);
    float scale = encode_back(s, w, v_z, z, length, 0), most = 0.0f;
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        float pulled = narrow(s.large[G1], s.single[1], place, ROW) / scale;
        float g = (s.plane[1][place] - pulled) * (2.0f / PIXELS);
        if (LATENT) {
            g *= s.plane[3][place];
            most = larger(most, fabsf(g));
            s.plane[2][place] = g;
        } else {
            s.plane[LATENT ? 2 : 4][place] = g;
        }
    }
    SYNC();
    if (LATENT) {
        decode_back<true>(s, w, block_reduce<true>(s, most), grad, 0);
        float square = 0.0f;
        for (int i = 0; i < ZP; i++) square += grad[i] * grad[i];
        float factor = CLIP ? clip / larger(sqrtf(square), clip) : 1.0f;
        for (int i = 0; i < ZP; i++)
            grad[i] = CLIP == BY_VALUE ? (grad[i] > clip ? clip : grad[i] < -clip ? -clip : grad[i]) : grad[i] * factor;
    } else if (CLIP) {
        clip_image(s, clip);
    }
    return squares / PIXELS;
}

// --- random numbers: Philox with counters (event, step, stream, 0)

DEVICE void philox(u64 seed, u32 c0, u32 c1, u32 c2, u32& r0, u32& r1) {
    u32 c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        u32 a = c0, b = c2;
        c0 = high_product(0xCD9E8D57u, b) ^ c1 ^ k0;
        c2 = high_product(0xD2511F53u, a) ^ c3 ^ k1;
        c1 = 0xCD9E8D57u * b;
        c3 = 0xD2511F53u * a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    r0 = c0, r1 = c1;
}

DEVICE float to_uniform(u32 r) {
    int x = (int)r;
    return (float)(x < 0 ? -x - 1 : x) * 4.6566127342e-10f;
}

DEVICE float normal(u64 seed, u32 event, u32 t) {
    u32 r0, r1;
    philox(seed, event, t, 0, r0, r1);
    return sqrtf(-2.0f * logf(larger(1.0e-7f, to_uniform(r0)))) * cospif(2.0f * to_uniform(r1));
}

DEVICE float uniform(u64 seed, u32 sample, u32 t) {
    u32 r0, r1;
    philox(seed, sample, t, 1, r0, r1);
    return to_uniform(r0);
}

// --- steps of a latent chain; every thread has all of the vector

DEVICE float dot(const float a[ZP], const float b[ZP]) {
    float total = 0.0f;
    for (int i = 0; i < ZP; i++) total += a[i] * b[i];
    return total;
}

DEVICE void tangent(const float z[ZP], float v[ZP]) {
    if (ON != GEODESIC) return;
    float along = dot(v, z);
    for (int i = 0; i < ZP; i++) v[i] -= along * z[i];
}

// The proposal y from z; v becomes the displacement to it, `again` that back from it; whether it may be taken.
DEVICE bool latent_move(const float z[ZP], float v[ZP], float y[ZP], float again[ZP], float low, float high) {
    bool allowed = true;
    float total = 0.0f;
    for (int i = 0; i < ZP; i++) total += v[i];
    if (!(total == total)) allowed = false;
    if (ON == GEODESIC) {
        tangent(z, v);
        float length = sqrtf(dot(v, v)), over = larger(length, 1e-30f), cosine = cosf(length), sine = sinf(length);
        for (int i = 0; i < ZP; i++) y[i] = cosine * z[i] + sine * v[i] / over;
        float norm = sqrtf(dot(y, y));
        for (int i = 0; i < ZP; i++) y[i] /= norm, again[i] = -length * (cosine * v[i] / over - sine * z[i]);
        return allowed && length < 3.141592653589793f;
    }
    for (int i = 0; i < ZP; i++) y[i] = z[i] + v[i];
    if (ON == PROJECT) {
        float norm = larger(sqrtf(dot(y, y)), 1e-30f);
        for (int i = 0; i < ZP; i++) y[i] /= norm;
    }
    for (int i = 0; i < Z; i++) {
        if (ON == CLAMP) y[i] = y[i] < low ? low : y[i] > high ? high : y[i];
        if (ON == REJECT && (y[i] < low || y[i] > high)) allowed = false;
    }
    for (int i = 0; i < ZP; i++) v[i] = y[i] - z[i], again[i] = -v[i];
    return allowed;
}

// --- steps of a chain of images

// The proposal, to plane 0; whether it stays within the bounds.
DEVICE bool propose(Shared& s, float rate, float sigma, u64 seed, u32 first, int t, float low, float high) {
    float outside = 0.0f;
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        float y = s.plane[LATENT ? 0 : 5][place];
        if (t > 0) {
            y += sigma * normal(seed, first + pixel, t) - rate * s.plane[LATENT ? 0 : 6][place];
            if (ON == CLAMP) y = y < low ? low : y > high ? high : y;
        }
        if (ON == REJECT && (y < low || y > high)) outside = 1.0f;
        s.plane[0][place] = y;
    }
    SYNC();
    return ON != REJECT || block_reduce<true>(s, outside) == 0.0f;
}

DEVICE float squares_of(Shared& s, float rate) {
    float total = 0.0f;
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        float move = s.plane[0][place] - s.plane[LATENT ? 0 : 5][place];
        float there = move + rate * s.plane[LATENT ? 0 : 6][place];
        float again = rate * s.plane[LATENT ? 0 : 4][place] - move;
        total += there * there - again * again;
    }
    return block_reduce<false>(s, total);
}

KERNEL chain(const float* start, float* position, float* energies, float* gradients, int* accepted_steps,
             const long long* seeds, const float* temperatures, const float* sizes, const u16* half, const float* full,
             int n, int steps, int seed_stride, int temperature_stride, int size_stride, int weight_stride,
             float noise_ratio, float low, float high, float clip) {
    Shared& s = SHARED;
    int image = BLOCK_X, member = BLOCK_Y, members = BLOCKS_Y, sample = member * n + image;
    Weights w = {half + (long long)member * weight_stride, full + (long long)member * weight_stride};
    prepare(s, w);
    u64 seed = (u64)seeds[member * seed_stride];
    float temperature = temperatures[sample * temperature_stride], size = sizes[sample * size_stride];
    float rate = size / temperature, noise = sqrtf(noise_ratio * size), energy = 0.0f;
    float z[ZP], grad[ZP];
    for (int i = 0; i < ZP; i++) z[i] = LATENT && i < Z ? start[sample * Z + i] : 0.0f, grad[i] = 0.0f;
    if (!LATENT)
        for (int pixel = TID; pixel < PIXELS; pixel += THREADS)
            s.plane[LATENT ? 0 : 5][place_of(pixel, SIDE)] = start[(long long)sample * PIXELS + pixel];
    SYNC();
    // Turn 0 stays in place and fetches energy and gradient of the start, so that the passes stand here once.
    for (int t = 0; t <= steps; t++) {
        float sigma = ANNEAL && t > 1 ? noise / (float)t : noise;
        float y[ZP], there[ZP], again[ZP], y_grad[ZP], drift[ZP];
        bool allowed = true;
        if (LATENT) {
            for (int i = 0; i < ZP; i++) drift[i] = -rate * grad[i];
            tangent(z, drift);
            for (int i = 0; i < ZP; i++) there[i] = drift[i] + (i < Z ? sigma * normal(seed, sample * Z + i, t) : 0.0f);
            allowed = latent_move(z, there, y, again, low, high);
            for (int i = 0; i < ZP; i++) y[i] = t > 0 ? y[i] : z[i], there[i] -= drift[i];
        } else {
            allowed = propose(s, rate, sigma, seed, (u32)sample * PIXELS, t, low, high);
        }
        float y_energy = value_and_grad(s, w, y, y_grad, clip);
        bool accepted = allowed;
        if (METROPOLIS) {
            float squares = 0.0f;
            if (LATENT) {
                for (int i = 0; i < ZP; i++) drift[i] = -rate * y_grad[i];
                tangent(y, drift);
                for (int i = 0; i < ZP; i++) again[i] -= drift[i], squares += there[i] * there[i] - again[i] * again[i];
            } else {
                squares = squares_of(s, rate);
            }
            float log_ratio = (energy - y_energy) / temperature + squares / (2.0f * sigma * sigma);
            accepted = allowed && logf(uniform(seed, sample, t)) < log_ratio;
        }
        if (accepted || t == 0) {
            energy = y_energy;
            if (LATENT)
                for (int i = 0; i < ZP; i++) z[i] = y[i], grad[i] = y_grad[i];
            else
                for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
                    int place = place_of(pixel, SIDE);
                    s.plane[LATENT ? 0 : 5][place] = s.plane[0][place];
                    s.plane[LATENT ? 0 : 6][place] = s.plane[LATENT ? 0 : 4][place];
                }
        }
        SYNC();
        if (TID == 0 && t > 0) accepted_steps[((t - 1) * members + member) * n + image] = accepted;
    }
    if (TID == 0) energies[sample] = energy;
    if (LATENT) {
        for (int i = 0; i < Z; i++)
            if (TID == i) position[sample * Z + i] = z[i], gradients[sample * Z + i] = grad[i];
    } else {
        for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
            int place = place_of(pixel, SIDE);
            position[(long long)sample * PIXELS + pixel] = s.plane[LATENT ? 0 : 5][place];
            gradients[(long long)sample * PIXELS + pixel] = s.plane[LATENT ? 0 : 6][place];
        }
    }
}
