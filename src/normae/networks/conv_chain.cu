// A Langevin chain of the convolutional autoencoder: one block takes one image, or one latent point, through all steps.
//
// Compiled behind conv_network.cu with METROPOLIS, ON, CLIP and ANNEAL.

#define CLAMP 1  // 0 is a free chain
#define REJECT 2
#define GEODESIC 3
#define PROJECT 4
#define BY_VALUE 1
#define BY_ROW 2
#define BY_NORM 3
#define PIECES ((SIDE + 31) / 32)  // of a row, for a warp

// Limit the gradient in plane 1 by value, by the norm of each row, or by its norm.
DEVICE void clip_image(Shared& s, float clip) {
    float* grad = s.plane[1];
    float total = 0.0f;
    if (CLIP == BY_NORM) {
        for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
            float g = grad[place_of(pixel, SIDE)];
            total += g * g;
        }
        total = block_sum(s, total);
    }
#pragma unroll 1
    for (int row = TID / 32; row < SIDE; row += WARPS) {
        float square = 0.0f, *at = grad + (row + 1) * ROW + TID % 32 + 1;
        bool last = SIDE % 32 == 0 || TID % 32 < SIDE % 32;
#pragma unroll
        for (int k = 0; CLIP == BY_ROW && k < PIECES; k++)
            if (k < PIECES - 1 || last) square += at[32 * k] * at[32 * k];
        square = CLIP == BY_ROW ? warp_sum(square, 32) : total;
        float factor = clip / larger(sqrtf(square), clip);
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            if (k == PIECES - 1 && !last) break;
            float g = at[32 * k];
            at[32 * k] = CLIP == BY_VALUE ? (g > clip ? clip : g < -clip ? -clip : g) : g * factor;
        }
    }
    SYNC();
}

// Energy and gradient: at the latent point s.proposal, to s.pulled; or at plane 0, clipped, to plane 1.
DEVICE float value_and_grad(Shared& s, const Weights& w, float clip) {
    float squares, largest, most = 0.0f;
    if (LATENT) decode<true>(s, w, s.proposal, 1.0f, squares, largest);
    float factor = encode(s, w);
    decode<false>(s, w, s.latent, factor, squares, largest);
    decode_back<false>(s, w, largest, 0);
    float inverse = 1.0f / encode_back(s, w, factor, 0);
    narrow(s, s.large[G1], 1, SIDE, [&](int pixel, int place, float pulled) {
        float g = (s.residual[pixel] - pulled * inverse) * (2.0f / PIXELS);
        if (LATENT) g *= derivative_of(s.plane[0][place]);
        most = larger(most, fabsf(g));
        s.plane[1][place] = g;
    });
    if (LATENT) {
        most = block_most(s, most);
        decode_back<true>(s, w, most, 0);
    } else {
        SYNC();
        if (CLIP) clip_image(s, clip);
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

// --- steps of a latent chain, by one warp: lane i has coordinate i, and those from Z on are zero

DEVICE float dot(float a, float b) { return warp_sum(a * b, 32); }
DEVICE float tangent(float z, float v) { return ON == GEODESIC ? v - dot(v, z) * z : v; }

// The proposal y from z; v becomes the displacement to it, `again` that back from it; whether it may be taken.
DEVICE bool latent_move(float z, float& v, float& y, float& again, float low, float high) {
    float total = warp_sum(v, 32), outside = 0.0f;
    bool allowed = total == total;
    if (ON == GEODESIC) {
        v = tangent(z, v);
        float length = sqrtf(dot(v, v)), unit = v / larger(length, 1e-30f), cosine = cosf(length), sine = sinf(length);
        y = cosine * z + sine * unit;
        y /= sqrtf(dot(y, y));
        again = -length * (cosine * unit - sine * z);
        return allowed && length < 3.141592653589793f;
    }
    y = z + v;
    if (ON == PROJECT) y /= larger(sqrtf(dot(y, y)), 1e-30f);
    if (TID < Z) {
        if (ON == CLAMP) y = y < low ? low : y > high ? high : y;
        if (ON == REJECT && (y < low || y > high)) outside = 1.0f;
    }
    v = y - z, again = -v;
    return allowed && (ON != REJECT || warp_sum(outside, 32) == 0.0f);
}

DEVICE float latent_clip(float grad, float clip) {
    if (CLIP == BY_VALUE) return grad > clip ? clip : grad < -clip ? -clip : grad;
    return CLIP ? grad * (clip / larger(sqrtf(dot(grad, grad)), clip)) : grad;
}

// --- steps of a chain of images; position and gradient are in global memory, each pixel touched by one thread only

// The proposal, to plane 0; whether it stays within the bounds.
DEVICE bool propose(Shared& s, const float* position, const float* gradient, float rate, float sigma, u64 seed, u32 first,
                    int t, float low, float high) {
    float outside = 0.0f;
#pragma unroll
    for (int k = 0; k < (PIXELS + THREADS - 1) / THREADS; k++) {
        int pixel = TID + k * THREADS;
        if (pixel < PIXELS) s.plane[0][place_of(pixel, SIDE)] = position[pixel] - (t > 0 ? rate * gradient[pixel] : 0.0f);
    }
#pragma unroll 1
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        float& y = s.plane[0][place_of(pixel, SIDE)];
        if (t > 0) {
            y += sigma * normal(seed, first + pixel, t);
            if (ON == CLAMP) y = y < low ? low : y > high ? high : y;
        }
        if (ON == REJECT && (y < low || y > high)) outside = 1.0f;
    }
    SYNC();
    return ON != REJECT || block_most(s, outside) == 0.0f;
}

DEVICE float squares_of(Shared& s, const float* position, const float* gradient, float rate) {
    float total = 0.0f;
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        float move = s.plane[0][place] - position[pixel];
        float there = move + rate * gradient[pixel], again = rate * s.plane[1][place] - move;
        total += there * there - again * again;
    }
    return block_sum(s, total);
}

DEVICE void keep(const Shared& s, float* position, float* gradient) {
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        position[pixel] = s.plane[0][place], gradient[pixel] = s.plane[1][place];
    }
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
    float z = LATENT && TID < Z ? start[sample * Z + TID] : 0.0f, grad = 0.0f;
    position += (long long)sample * (LATENT ? Z : PIXELS), gradients += (long long)sample * (LATENT ? Z : PIXELS);
    const float* from = start + (long long)sample * PIXELS;
    // Turn 0 stays in place and fetches energy and gradient of the start, so that the passes stand here once.
    for (int t = 0; t <= steps; t++) {
        float sigma = ANNEAL && t > 1 ? noise / (float)t : noise, y = 0.0f, again = 0.0f, squares = 0.0f;
        bool allowed = true;
        if (LATENT && TID < 32) {
            float drift = tangent(z, -rate * grad), there = drift;
            if (TID < Z) there += sigma * normal(seed, sample * Z + TID, t);
            allowed = latent_move(z, there, y, again, low, high);
            if (t == 0) y = z;
            if (METROPOLIS) squares = dot(there - drift, there - drift);
            if (TID < ZP) s.proposal[TID] = y;
        }
        if (LATENT) SYNC();
        else allowed = propose(s, t > 0 ? position : from, gradients, rate, sigma, seed, (u32)sample * PIXELS, t, low, high);
        float y_energy = value_and_grad(s, w, clip), y_grad = 0.0f;
        if (!LATENT && METROPOLIS) squares = t > 0 ? squares_of(s, position, gradients, rate) : 0.0f;
        if (LATENT && TID < 32) {
            y_grad = latent_clip(TID < ZP ? s.pulled[TID] : 0.0f, clip);
            if (METROPOLIS) again -= tangent(y, -rate * y_grad), squares -= dot(again, again);
        }
        float log_ratio = (energy - y_energy) / temperature + squares / (2.0f * sigma * sigma);
        bool accepted = allowed && (!METROPOLIS || logf(uniform(seed, sample, t)) < log_ratio);
        if (accepted || t == 0) {
            energy = y_energy, z = y, grad = y_grad;
            if (!LATENT) keep(s, position, gradients);
        }
        if (TID == 0 && t > 0) accepted_steps[((t - 1) * members + member) * n + image] = accepted;
    }
    if (TID == 0) energies[sample] = energy;
    if (LATENT && TID < Z) position[TID] = z, gradients[TID] = grad;
}
