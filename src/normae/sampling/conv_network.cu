// The convolutional autoencoder with eight channels for one image and one block of threads: forward and pullback.
//
// All activations stay in shared memory. A map has eight channels for each pixel, half precision, 16 bytes a pixel,
// which is a row of an 8x8 matrix of the tensor cores; a plane has one float for each pixel. Both have a border of one
// pixel that is zero and is never written: pixel (row, column) has the place (row + 1) (side + 2) + column + 1. Of the
// input of a nonlinearity its sign is kept, a bit for each channel.
//
// Compiled before conv_chain.cu or conv_gradient.cu, with SIDE, Z, H, HP, ZP, SPHERE, SIGMOID, and: LATENT (a chain of
// latent points: a first decoding), GRADIENT (of the weights: all activations are kept). See conv_cuda.py.

#define C 8
#define HALF (SIDE / 2)
#define ROW (SIDE + 2)
#define SROW (HALF + 2)
#define PIXELS (SIDE * SIDE)
#define WINDOWS (HALF * HALF)
#define THREADS 512
#define WARPS (THREADS / 32)
#define OCTETS (HP / 8)
#define PARTS (9 * C * C + C)  // gradients of a convolution and its bias
#define PLANES (GRADIENT ? 3 : LATENT ? 4 : 7)

// Where activations stand among the maps: in turns, or each by itself as long as a gradient needs it.
#define LARGE_MAPS (GRADIENT ? 3 : 2)
#define SMALL_MAPS (GRADIENT ? 6 : 2)
#define INNER_PLANES (GRADIENT ? 3 : 2)
enum Large { A1 = 0, U = GRADIENT ? 1 : 0, A8 = GRADIENT ? 2 : 1, G8 = GRADIENT ? 2 : 0, GU = 1, G2 = GRADIENT ? 1 : 0,
             G1 = GRADIENT ? 2 : 1 };
enum Small { A2 = 0, A3 = 1, A4 = GRADIENT ? 2 : 0, A6 = GRADIENT ? 3 : 0, A7 = GRADIENT ? 4 : 1, G7 = GRADIENT ? 5 : 0,
             G6 = GRADIENT ? 4 : 1, G4 = GRADIENT ? 2 : 0, G3 = GRADIENT ? 5 : 1 };
enum Inner { A5 = 0, V = 1, A9 = GRADIENT ? 2 : 0 };

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Octet {
    u32 a, b, c, d;
};

struct Shared {
    alignas(16) u16 large[LARGE_MAPS][ROW * ROW * C];
    alignas(16) u16 small[SMALL_MAPS][SROW * SROW * C];
    alignas(16) u32 frag[10][9][32];
    alignas(16) float single[8][9 * C];
    float bias[9 * C], alpha[16];
    float plane[PLANES][ROW * ROW];
    float inner[INNER_PLANES][SROW * SROW];
    alignas(16) float part[GRADIENT ? WARPS * PARTS : THREADS * 8];
    float hidden_e[HP], hidden_d[1 + LATENT][HP], vector[HP], latent[ZP], reduce[WARPS];
    u8 sign1[PIXELS], sign8[1 + LATENT][PIXELS];
    u8 sign2[WINDOWS], sign3[WINDOWS], sign4[WINDOWS], sign5[WINDOWS];
    u8 sign6[1 + LATENT][WINDOWS], sign7[1 + LATENT][WINDOWS], sign9[1 + LATENT][WINDOWS];
    u16 choice[WINDOWS];
};

#ifdef EMULATE  // the tests run the same source on a CPU
#include <emulate.h>
#else
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#define SYNC() __syncthreads()
#define TID ((int)threadIdx.x)
#define BLOCK_X ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define BLOCKS_X ((int)gridDim.x)
#define BLOCKS_Y ((int)gridDim.y)
extern __shared__ __align__(16) unsigned char memory[];
#define SHARED (*reinterpret_cast<Shared*>(memory))

DEVICE float as_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DEVICE u16 as_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
DEVICE u32 shuffle(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE float shuffle(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }
#endif

// --- places

DEVICE int place_of(int pixel, int side) { return (pixel / side + 1) * (side + 2) + pixel % side + 1; }
DEVICE int corner_of(int window) { return (2 * (window / HALF) + 1) * ROW + 2 * (window % HALF) + 1; }
// Row `row` of the tile of 16 pixels: 16 neighbours, or four windows with the pixels of a window at rows k, k + 4, ...
template <bool POOLED> DEVICE int tile_place(int tile, int row, int side) {
    if (!POOLED) return place_of(tile * 16 + row, side);
    int sub = row / 4;
    return corner_of(tile * 4 + row % 4) + (sub / 2) * ROW + sub % 2;
}

DEVICE float prelu(float h, float alpha) { return h > 0.0f ? h : alpha * h; }
// min(h, 0), from prelu(h) and the sign of h.
DEVICE float negative_part(float a, bool positive, float alpha) {
    return positive || fabsf(alpha) < 1e-12f ? 0.0f : a / alpha;
}
DEVICE float larger(float a, float b) { return a > b ? a : b; }

// --- tensor cores: the convolution of a map at the 16 pixels of a tile

#ifdef EMULATE
template <bool POOLED>
DEVICE void product(const Shared& s, int conv, const u16* map, const u32*, int tile, int side, int lane, float c[4]) {
    for (int k = 0; k < 4; k++) {
        int place = tile_place<POOLED>(tile, lane / 4 + 8 * (k / 2), side), out = 2 * (lane % 4) + k % 2;
        c[k] = 0.0f;
        for (int tap = 0; tap < 9; tap++)
            for (int in = 0; in < C; in++) {
                u32 two = s.frag[conv][tap][out * 4 + in / 2];
                float x = as_float(map[(place + (tap / 3 - 1) * (side + 2) + tap % 3 - 1) * C + in]);
                c[k] += x * as_float((u16)(two >> 16 * (in % 2)));
            }
    }
}
#else
template <bool POOLED>
DEVICE void product(const Shared&, int, const u16* map, const u32* frag, int tile, int side, int lane, float c[4]) {
    int row = side + 2;
    u32 base = (u32)__cvta_generic_to_shared(map + tile_place<POOLED>(tile, lane % 16, side) * C);
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        int tap = 2 * pair + (lane >= 16);
        u32 at = base + ((tap / 3 - 1) * row + tap % 3 - 1) * 16, a0, a1, a2, a3;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3) : "r"(at) : "memory");
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(frag[2 * pair]), "r"(frag[2 * pair + 1]));
    }
    u32 at = base + (row + 1) * 16, a0, a1;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(a0), "=r"(a1) : "r"(at) : "memory");
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(frag[8]));
}
#endif

DEVICE void load_frag(const Shared& s, int conv, int lane, u32 frag[9]) {
#pragma unroll
    for (int tap = 0; tap < 9; tap++) frag[tap] = s.frag[conv][tap][lane];
}

DEVICE u32 both(float a, float b) { return (u32)as_half(a) | ((u32)as_half(b) << 16); }
DEVICE void put(u16* map, int place, int channel, u32 two) { *reinterpret_cast<u32*>(map + place * C + channel) = two; }

// What two channels give to the gradient of the slope: v before the nonlinearity's derivative times min(h, 0).
DEVICE float slope_part(const u16* behind, int place, int channel, u32 bits, float v0, float v1, float alpha) {
    u32 two = *reinterpret_cast<const u32*>(behind + place * C + channel);
    float h0 = negative_part(as_float((u16)two), bits & 1, alpha);
    return v0 * h0 + v1 * negative_part(as_float((u16)(two >> 16)), bits >> 1 & 1, alpha);
}

// A thread has channels 2 q and 2 q + 1 of the pixels lane / 4 and lane / 4 + 8; four threads have all of a pixel.
DEVICE u32 quad_or(u32 v) {
    v |= shuffle(v, 1);
    return v | shuffle(v, 2);
}

// A convolution and its nonlinearity.
DEVICE void forward(Shared& s, const u16* src, u16* dst, u8* sign, int conv, const float* bias, float alpha, int side) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    u32 frag[9];
    load_frag(s, conv, lane, frag);
    float b0 = bias[2 * q], b1 = bias[2 * q + 1];
    for (int tile = TID / 32; tile < side * side / 16; tile += WARPS) {
        float c[4];
        product<false>(s, conv, src, frag, tile, side, lane, c);
        float h[4] = {c[0] + b0, c[1] + b1, c[2] + b0, c[3] + b1};
        u32 bits = 0;
        for (int k = 0; k < 4; k++) {
            h[k] = as_float(as_half(h[k]));
            bits |= (u32)(h[k] > 0.0f) << (8 * (k / 2) + 2 * q + k % 2);
            h[k] = prelu(h[k], alpha);
        }
        int pixel = tile * 16 + g;
        put(dst, place_of(pixel, side), 2 * q, both(h[0], h[1]));
        put(dst, place_of(pixel + 8, side), 2 * q, both(h[2], h[3]));
        bits = quad_or(bits);
        if (q == 0) sign[pixel] = (u8)bits, sign[pixel + 8] = (u8)(bits >> 8);
    }
    SYNC();
}

// A convolution, its nonlinearity, and the largest value of each window, the first of equals.
DEVICE void forward_pooled(Shared& s, const u16* src, u16* dst, int conv, const float* bias, float alpha) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    u32 frag[9];
    load_frag(s, conv, lane, frag);
    for (int tile = TID / 32; tile < PIXELS / 16; tile += WARPS) {
        float c[4];
        product<true>(s, conv, src, frag, tile, SIDE, lane, c);
        u32 bits = 0, two[2];
        for (int k = 0; k < 2; k++) {
            float b = bias[2 * q + k];
            float h = as_float(as_half(c[k] + b)), later = as_float(as_half(c[2 + k] + b));
            u32 which = g / 4;
            if (prelu(later, alpha) > prelu(h, alpha)) h = later, which += 2;
            float other = shuffle(h, 16);
            u32 theirs = shuffle(which, 16);
            float mine = prelu(h, alpha), yours = prelu(other, alpha);
            if (yours > mine || (yours == mine && theirs < which)) h = other, which = theirs;
            bits |= which << (2 * (2 * q + k));
            bits |= (u32)(h > 0.0f) << (16 + 2 * q + k);
            two[k] = as_half(prelu(h, alpha));
        }
        bits = quad_or(bits);
        int window = tile * 4 + g % 4;
        if (g < 4) put(dst, place_of(window, HALF), 2 * q, two[0] | (two[1] << 16));
        if (g < 4 && q == 0) s.choice[window] = (u16)bits, s.sign2[window] = (u8)(bits >> 16);
    }
    SYNC();
}

// Pull back through a convolution, and through the nonlinearity before it where there is a sign. With the activations
// behind that nonlinearity (GRADIENT), a thread's part of its slope's gradient is returned.
DEVICE float back(Shared& s, const u16* src, u16* dst, const u8* sign, const u16* behind, int conv, float alpha, int side) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    u32 frag[9];
    load_frag(s, conv, lane, frag);
    float slope = 0.0f;
    for (int tile = TID / 32; tile < side * side / 16; tile += WARPS) {
        float c[4];
        product<false>(s, conv, src, frag, tile, side, lane, c);
        for (int k = 0; k < 2; k++) {
            int pixel = tile * 16 + g + 8 * k, place = place_of(pixel, side);
            u32 bits = sign ? (u32)sign[pixel] >> (2 * q) : 3u;
            if (GRADIENT && behind) slope += slope_part(behind, place, 2 * q, bits, c[2 * k], c[2 * k + 1], alpha);
            float v0 = c[2 * k] * (bits & 1 ? 1.0f : alpha), v1 = c[2 * k + 1] * (bits & 2 ? 1.0f : alpha);
            put(dst, place, 2 * q, both(v0, v1));
        }
    }
    SYNC();
    return slope;
}

// The same through the small image's first convolution, the pooling and the nonlinearity before it.
DEVICE float back_pooled(Shared& s, const u16* src, u16* dst, const u16* behind, int conv, float alpha) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    u32 frag[9];
    load_frag(s, conv, lane, frag);
    float slope = 0.0f;
    for (int tile = TID / 32; tile < WINDOWS / 16; tile += WARPS) {
        float c[4];
        product<false>(s, conv, src, frag, tile, HALF, lane, c);
        for (int k = 0; k < 2; k++) {
            int window = tile * 16 + g + 8 * k, corner = corner_of(window);
            u32 bits = (u32)s.sign2[window] >> (2 * q), choice = (u32)s.choice[window] >> (4 * q);
            if (GRADIENT)
                slope += slope_part(behind, place_of(window, HALF), 2 * q, bits, c[2 * k], c[2 * k + 1], alpha);
            u32 v0 = as_half(c[2 * k] * (bits & 1 ? 1.0f : alpha)), v1 = as_half(c[2 * k + 1] * (bits & 2 ? 1.0f : alpha));
            for (u32 sub = 0; sub < 4; sub++) {
                u32 two = ((choice & 3) == sub ? v0 : 0u) | ((choice >> 2 & 3) == sub ? v1 << 16 : 0u);
                put(dst, corner + (int)(sub / 2) * ROW + (int)(sub % 2), 2 * q, two);
            }
        }
    }
    SYNC();
    return slope;
}

// --- convolutions with one channel on one side, and upsampling: a thread has all channels of a pixel

DEVICE void unpack(const u16* at, float x[C]) {
    Octet o = *reinterpret_cast<const Octet*>(at);
    u32 words[4] = {o.a, o.b, o.c, o.d};
    for (int k = 0; k < 4; k++) x[2 * k] = as_float((u16)words[k]), x[2 * k + 1] = as_float((u16)(words[k] >> 16));
}

DEVICE void pack(u16* at, const float x[C]) {
    Octet o = {both(x[0], x[1]), both(x[2], x[3]), both(x[4], x[5]), both(x[6], x[7])};
    *reinterpret_cast<Octet*>(at) = o;
}

DEVICE void widened(const float* plane, const float* w, int place, int row, float acc[C]) {
    for (int c = 0; c < C; c++) acc[c] = 0.0f;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        float x = plane[place + (tap / 3 - 1) * row + tap % 3 - 1];
#pragma unroll
        for (int c = 0; c < C; c++) acc[c] += x * w[tap * C + c];
    }
}

DEVICE void widen(const float* plane, u16* dst, u8* sign, const float* w, const float* bias, float alpha, int side) {
    for (int pixel = TID; pixel < side * side; pixel += THREADS) {
        int place = place_of(pixel, side);
        float h[C];
        widened(plane, w, place, side + 2, h);
        u32 bits = 0;
        for (int c = 0; c < C; c++) {
            h[c] = as_float(as_half(h[c] + bias[c]));
            bits |= (u32)(h[c] > 0.0f) << c;
            h[c] = prelu(h[c], alpha);
        }
        sign[pixel] = (u8)bits;
        pack(dst + place * C, h);
    }
    SYNC();
}

// Pull back `scale` times a plane; the part of the slope's gradient is of the activations in dst, which are replaced.
DEVICE float widen_back(const float* plane, float scale, u16* dst, const u8* sign, const float* w, float alpha, int side) {
    float slope = 0.0f;
    for (int pixel = TID; pixel < side * side; pixel += THREADS) {
        int place = place_of(pixel, side);
        float v[C], a[C];
        widened(plane, w, place, side + 2, v);
        u32 bits = sign[pixel];
        if (GRADIENT) unpack(dst + place * C, a);
        for (int c = 0; c < C; c++) {
            v[c] *= scale;
            if (GRADIENT) slope += v[c] * negative_part(a[c], bits >> c & 1, alpha);
            v[c] *= bits >> c & 1 ? 1.0f : alpha;
        }
        pack(dst + place * C, v);
    }
    SYNC();
    return slope;
}

DEVICE float narrow(const u16* map, const float* w, int place, int row) {
    float total = 0.0f;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        float x[C];
        unpack(map + (place + (tap / 3 - 1) * row + tap % 3 - 1) * C, x);
#pragma unroll
        for (int c = 0; c < C; c++) total += x[c] * w[tap * C + c];
    }
    return total;
}

// Bilinear upsampling by two: 3/4 of the nearest pixel and 1/4 of the next along each axis; edges are repeated.
DEVICE void spread(const u16* src, u16* dst) {
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int r = pixel / SIDE, c = pixel % SIDE, near_r = r / 2, near_c = c / 2;
        int next_r = near_r + 2 * (r % 2) - 1, next_c = near_c + 2 * (c % 2) - 1;
        next_r = next_r < 0 ? 0 : next_r > HALF - 1 ? HALF - 1 : next_r;
        next_c = next_c < 0 ? 0 : next_c > HALF - 1 ? HALF - 1 : next_c;
        const float weight[4] = {0.5625f, 0.1875f, 0.1875f, 0.0625f};
        float v[C] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int at = ((k / 2 ? next_r : near_r) + 1) * SROW + (k % 2 ? next_c : near_c) + 1;
            float x[C];
            unpack(src + at * C, x);
            for (int i = 0; i < C; i++) v[i] += weight[k] * x[i];
        }
        pack(dst + place_of(pixel, SIDE) * C, v);
    }
    SYNC();
}

DEVICE float share(int k, int place) {
    if (k == 1) return place == 0 ? 1.0f : 0.75f;
    if (k == 2) return place == HALF - 1 ? 1.0f : 0.75f;
    return 0.25f;
}

DEVICE float spread_back(const u16* src, u16* dst, const u8* sign, const u16* behind, float alpha) {
    float slope = 0.0f;
    for (int window = TID; window < WINDOWS; window += THREADS) {
        int corner = corner_of(window), r = window / HALF, c = window % HALF, place = place_of(window, HALF);
        float v[C] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, a[C];
#pragma unroll
        for (int dy = 0; dy < 4; dy++)
#pragma unroll
            for (int dx = 0; dx < 4; dx++) {
                float x[C], weight = share(dy, r) * share(dx, c);
                unpack(src + (corner + (dy - 1) * ROW + dx - 1) * C, x);
                for (int i = 0; i < C; i++) v[i] += weight * x[i];
            }
        u32 bits = sign[window];
        if (GRADIENT) unpack(behind + place * C, a);
        for (int i = 0; i < C; i++) {
            if (GRADIENT) slope += v[i] * negative_part(a[i], bits >> i & 1, alpha);
            v[i] *= bits >> i & 1 ? 1.0f : alpha;
        }
        pack(dst + place * C, v);
    }
    SYNC();
    return slope;
}

// --- sums over the block

DEVICE float warp_sum(float v, int width) {
    for (int m = width / 2; m > 0; m /= 2) v += shuffle(v, m);
    return v;
}

template <bool MAX> DEVICE float block_reduce(Shared& s, float v) {
    for (int m = 16; m > 0; m /= 2) {
        float other = shuffle(v, m);
        v = MAX ? larger(v, other) : v + other;
    }
    if (TID % 32 == 0) s.reduce[TID / 32] = v;
    SYNC();
    float total = s.reduce[0];
    for (int k = 1; k < WARPS; k++) total = MAX ? larger(total, s.reduce[k]) : total + s.reduce[k];
    SYNC();
    return total;
}

// --- gradients of the weights

// Where a block adds them, in the order of conv_packing's `gathered`; those of slopes are gathered by each thread.
struct Gather {
    float* out;
    float factor;
    float slopes[11];
    DEVICE float* mixing(int k) const { return out + k * 12 * C * C; }
    DEVICE float* single(int k) const { return out + 60 * C * C + k * 16 * C; }
    DEVICE float* bias(int k) const { return out + 60 * C * C + 64 * C + k * C; }
    DEVICE float* slope(int k) const { return bias(9) + k; }
};

#ifdef EMULATE
DEVICE void outer(const u16* x, const u16* v, int tile, int side, int lane, float acc[5][4], float& bias) {
    int g = lane / 4, q = lane % 4;
    for (int pixel = 0; pixel < 16; pixel++) {
        int place = place_of(tile * 16 + pixel, side);
        for (int pair = 0; pair < 5; pair++)
            for (int k = 0; k < 4; k++) {
                int tap = pair < 4 ? 2 * pair + k / 2 : 8;
                float there = as_float(x[(place + (tap / 3 - 1) * (side + 2) + tap % 3 - 1) * C + g]);
                acc[pair][k] += there * as_float(v[place * C + 2 * q + k % 2]);
            }
        if (pixel % 8 / 2 == q) bias += as_float(v[place * C + g]);
    }
}

DEVICE void outer_plane(const float* plane, float scale, int sense, const u16* map, int tile, int side, int lane,
                        float acc[4], float& bias) {
    int g = lane / 4, q = lane % 4;
    for (int pixel = 0; pixel < 16; pixel++) {
        int place = place_of(tile * 16 + pixel, side);
        for (int k = 0; k < 4; k++) {
            int tap = g + 8 * (k / 2);
            if (tap > 8) continue;
            float there = as_float(as_half(scale * plane[place + sense * ((tap / 3 - 1) * (side + 2) + tap % 3 - 1)]));
            acc[k] += there * as_float(map[place * C + 2 * q + k % 2]);
        }
        if (pixel % 8 / 2 == q) bias += as_float(map[place * C + g]);
    }
}
#else
DEVICE void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The right factor: pixels of a tile by channels of a map; this thread's part of their sum over pixels.
DEVICE void right_factor(const u16* map, int tile, int side, int lane, u32& b0, u32& b1, float& bias) {
    u32 at = (u32)__cvta_generic_to_shared(map + place_of(tile * 16 + lane % 16, side) * C);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(at) : "memory");
    bias += as_float((u16)b0) + as_float((u16)(b0 >> 16)) + as_float((u16)b1) + as_float((u16)(b1 >> 16));
}

// Sums over the pixels of a tile of the input below the stencil times v: rows are (tap, channel in), two taps a product.
DEVICE void outer(const u16* x, const u16* v, int tile, int side, int lane, float acc[5][4], float& bias) {
    u32 b0, b1;
    right_factor(v, tile, side, lane, b0, b1, bias);
    u32 base = (u32)__cvta_generic_to_shared(x + place_of(tile * 16 + lane % 8 + 8 * (lane >= 16), side) * C);
#pragma unroll
    for (int pair = 0; pair < 5; pair++) {
        int tap = pair < 4 ? 2 * pair + lane / 8 % 2 : 8;
        u32 at = base + ((tap / 3 - 1) * (side + 2) + tap % 3 - 1) * 16, a[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(at) : "memory");
        multiply(acc[pair], a, b0, b1);
    }
}

// The same with a plane as input, or (sense -1) as v behind a convolution to one channel: rows are taps.
DEVICE void outer_plane(const float* plane, float scale, int sense, const u16* map, int tile, int side, int lane,
                        float acc[4], float& bias) {
    int g = lane / 4, q = lane % 4;
    u32 b0, b1, a[4] = {0, 0, 0, 0};
    right_factor(map, tile, side, lane, b0, b1, bias);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int first = place_of(tile * 16 + 8 * k + 2 * q, side), second = place_of(tile * 16 + 8 * k + 2 * q + 1, side);
        int shift = sense * ((g / 3 - 1) * (side + 2) + g % 3 - 1), last = sense * (side + 2 + 1);
        a[2 * k] = both(scale * plane[first + shift], scale * plane[second + shift]);
        if (g == 0) a[2 * k + 1] = both(scale * plane[first + last], scale * plane[second + last]);
    }
    multiply(acc, a, b0, b1);
}
#endif

DEVICE float over_quad(float v) {
    v += shuffle(v, 1);
    return v + shuffle(v, 2);
}

// Of a convolution and its bias, `factor` times.
DEVICE void weight_gradient(Shared& s, const u16* x, const u16* v, float factor, float* out, float* bias_out, int side) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    float acc[5][4] = {}, bias = 0.0f;
    for (int tile = TID / 32; tile < side * side / 16; tile += WARPS) outer(x, v, tile, side, lane, acc, bias);
    float* part = s.part + TID / 32 * PARTS;
    for (int pair = 0; pair < 5; pair++)
        for (int k = 0; k < (pair < 4 ? 4 : 2); k++) part[(2 * pair + k / 2) * C * C + g * C + 2 * q + k % 2] = acc[pair][k];
    bias = over_quad(bias);
    if (q == 0) part[9 * C * C + g] = bias;
    SYNC();
    for (int e = TID; e < PARTS; e += THREADS) {
        float total = 0.0f;
        for (int k = 0; k < WARPS; k++) total += s.part[k * PARTS + e];
        int tap = e / (C * C);
        float* at = tap < 9 ? out + (tap / 3 * 4 + tap % 3) * C * C + e % (C * C) : bias_out + e - 9 * C * C;
        *at += factor * total;
    }
    SYNC();
}

// Of a convolution with one channel on one side: a plane as input and v as map; or (FLIP) v as `scale` times the plane.
template <bool FLIP>
DEVICE void weight_gradient_plane(Shared& s, const float* plane, float scale, const u16* map, float factor, float* out,
                                  float* bias_out, int side) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    float acc[4] = {}, bias = 0.0f;
    for (int tile = TID / 32; tile < side * side / 16; tile += WARPS)
        outer_plane(plane, scale, FLIP ? -1 : 1, map, tile, side, lane, acc, bias);
    float* part = s.part + TID / 32 * PARTS;
    for (int k = 0; k < 4; k++)
        if (g + 8 * (k / 2) < 9) part[(g + 8 * (k / 2)) * C + 2 * q + k % 2] = acc[k];
    bias = over_quad(bias);
    if (q == 0) part[9 * C + g] = bias;
    float behind = 0.0f;
    if (FLIP) {
        for (int pixel = TID; pixel < side * side; pixel += THREADS) behind += scale * plane[place_of(pixel, side)];
        behind = block_reduce<false>(s, behind);
    }
    SYNC();
    for (int e = TID; e < 10 * C; e += THREADS) {
        float total = 0.0f;
        for (int k = 0; k < WARPS; k++) total += s.part[k * PARTS + e];
        if (e < 9 * C) out[e] += factor * total;
        else if (!FLIP) bias_out[e - 9 * C] += factor * total;
        else if (e == 9 * C) bias_out[0] += factor * behind;
    }
    SYNC();
}

// --- dense layers; the matrix has shape (WINDOWS, HP), of which H columns are not zero

DEVICE void from_rows(Shared& s, const u16* matrix, const float* plane, float* out) {
    int octet = TID % OCTETS, first = TID / OCTETS;
    float acc[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int pixel = octet * 8 < H ? first : WINDOWS; pixel < WINDOWS; pixel += THREADS / OCTETS) {
        float x[8], value = plane[place_of(pixel, HALF)];
        unpack(matrix + pixel * HP + octet * 8, x);
        for (int k = 0; k < 8; k++) acc[k] += x[k] * value;
    }
    for (int k = 0; k < 8; k++) s.part[first * HP + octet * 8 + k] = acc[k];
    SYNC();
    for (int j = TID; j < HP; j += THREADS) {
        float total = 0.0f;
        for (int k = 0; k < THREADS / OCTETS; k++) total += s.part[k * HP + j];
        out[j] = total;
    }
    SYNC();
}

// Of the pixel first + TID / OCTETS; every thread of it has the sum.
DEVICE float to_row(const u16* matrix, const float* hidden, int pixel) {
    int octet = TID % OCTETS;
    float total = 0.0f;
    if (octet * 8 < H && pixel < WINDOWS) {
        float x[8];
        unpack(matrix + pixel * HP + octet * 8, x);
        for (int k = 0; k < 8; k++) total += x[k] * hidden[octet * 8 + k];
    }
    return warp_sum(total, OCTETS);
}

// Weights of a model in packed order (conv_packing): in half precision, and in float32.
struct Weights {
    const u16* half;
    const float* full;
    DEVICE const u16* dense(int k) const { return half + 120 * C * C + 128 * C + k * WINDOWS * HP; }
    DEVICE const float* thin(int k) const { return full + 120 * C * C + 128 * C + 2 * WINDOWS * HP + k * ZP * HP; }
    DEVICE const float* bias_hidden(int k) const { return thin(2) + 9 * C + 16 + k * HP; }
    DEVICE const float* bias_latent() const { return bias_hidden(2); }
    DEVICE const float* bias_small() const { return bias_hidden(2) + ZP; }
};

// --- the network

// From plane 0 to the latent point (in s.latent, before the projection) and s.hidden_e.
DEVICE float encode(Shared& s, const Weights& w, float z[ZP]) {
    widen(s.plane[0], s.large[A1], s.sign1, s.single[0], s.bias, s.alpha[0], SIDE);
    forward_pooled(s, s.large[A1], s.small[A2], 0, s.bias + C, s.alpha[1]);
    forward(s, s.small[A2], s.small[A3], s.sign3, 2, s.bias + 2 * C, s.alpha[2], HALF);
    forward(s, s.small[A3], s.small[A4], s.sign4, 4, s.bias + 3 * C, s.alpha[3], HALF);
    for (int pixel = TID; pixel < WINDOWS; pixel += THREADS) {
        int place = place_of(pixel, HALF);
        float h = narrow(s.small[A4], s.single[2], place, SROW) + s.bias[4 * C];
        s.sign5[pixel] = h > 0.0f;
        s.inner[A5][place] = prelu(h, s.alpha[4]);
    }
    SYNC();
    from_rows(s, w.dense(0), s.inner[A5], s.vector);
    for (int j = TID; j < HP; j += THREADS) {
        float h = s.vector[j] + w.bias_hidden(0)[j];
        s.hidden_e[j] = h;
        s.vector[j] = prelu(h, s.alpha[5]);
    }
    SYNC();
    for (int i = TID / 32; i < ZP; i += WARPS) {
        float total = 0.0f;
        for (int j = TID % 32; j < HP; j += 32) total += w.thin(0)[i * HP + j] * s.vector[j];
        total = warp_sum(total, 32);
        if (TID % 32 == 0) s.latent[i] = total + w.bias_latent()[i];
    }
    SYNC();
    float length = 1.0f, square = 0.0f;
    for (int i = 0; i < ZP; i++) square += s.latent[i] * s.latent[i];
    if (SPHERE) length = sqrtf(square);
    for (int i = 0; i < ZP; i++) z[i] = SPHERE ? s.latent[i] / larger(length, 1e-30f) : s.latent[i];
    SYNC();
    return length;
}

// From z: the output to plane 0 and its derivative to plane 3 (FIRST); or the residual to plane 1 and v to plane 2.
// The sum of squared residuals and the largest abs(v) are returned.
template <bool FIRST> DEVICE void decode(Shared& s, const Weights& w, const float z[ZP], float& squares, float& largest) {
    float* hidden = s.hidden_d[FIRST];
    for (int j = TID; j < HP; j += THREADS) {
        float h = w.bias_hidden(1)[j];
        for (int i = 0; i < ZP; i++) h += w.thin(1)[i * HP + j] * z[i];
        hidden[j] = h;
        s.vector[j] = prelu(h, s.alpha[6]);
    }
    SYNC();
    for (int first = 0; first < WINDOWS; first += THREADS / OCTETS) {
        int pixel = first + TID / OCTETS;
        float h = to_row(w.dense(1), s.vector, pixel);
        if (TID % OCTETS == 0 && pixel < WINDOWS) {
            h += w.bias_small()[pixel];
            s.sign9[FIRST][pixel] = h > 0.0f;
            s.inner[A9][place_of(pixel, HALF)] = prelu(h, s.alpha[7]);
        }
    }
    SYNC();
    widen(s.inner[A9], s.small[A6], s.sign6[FIRST], s.single[4], s.bias + 5 * C, s.alpha[8], HALF);
    forward(s, s.small[A6], s.small[A7], s.sign7[FIRST], 6, s.bias + 6 * C, s.alpha[9], HALF);
    spread(s.small[A7], s.large[U]);
    forward(s, s.large[U], s.large[A8], s.sign8[FIRST], 8, s.bias + 7 * C, s.alpha[10], SIDE);
    float total = 0.0f, most = 0.0f;
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        float out = narrow(s.large[A8], s.single[6], place, ROW) + s.bias[8 * C], derivative = 1.0f;
        if (SIGMOID) out = 1.0f / (1.0f + expf(-out)), derivative = out * (1.0f - out);
        if (FIRST) {
            s.plane[0][place] = out;
            if (LATENT) s.plane[3][place] = derivative;
        } else {
            float residual = s.plane[0][place] - out, v = residual * derivative;
            total += residual * residual;
            most = larger(most, fabsf(v));
            s.plane[1][place] = residual;
            s.plane[2][place] = v;
        }
    }
    SYNC();
    squares = largest = 0.0f;
    if (!FIRST) squares = block_reduce<false>(s, total), largest = block_reduce<true>(s, most);
}

// Pull plane 2 back through the decoder, to v at z. Halves hold `scale` times the vectors, which are of order one.
// Behind it s.vector is v at the hidden vector's input, and inner plane V that at the decoder's small plane.
template <bool FIRST> DEVICE void decode_back(Shared& s, const Weights& w, float largest, float v_z[ZP], Gather* to) {
    float scale = 16.0f / larger(largest, 1e-30f), slope[5] = {}, f = 0.0f;
    if (GRADIENT) {
        f = to->factor / scale;
        weight_gradient_plane<true>(s, s.plane[2], scale, s.large[A8], f, to->single(3), to->bias(8), SIDE);
    }
    slope[4] = widen_back(s.plane[2], scale, s.large[G8], s.sign8[FIRST], s.single[7], s.alpha[10], SIDE);
    if (GRADIENT) weight_gradient(s, s.large[U], s.large[G8], f, to->mixing(4), to->bias(7), SIDE);
    back(s, s.large[G8], s.large[GU], 0, 0, 9, 1.0f, SIDE);
    slope[3] = spread_back(s.large[GU], s.small[G7], s.sign7[FIRST], s.small[A7], s.alpha[9]);
    if (GRADIENT) weight_gradient(s, s.small[A6], s.small[G7], f, to->mixing(3), to->bias(6), HALF);
    slope[2] = back(s, s.small[G7], s.small[G6], s.sign6[FIRST], s.small[A6], 7, s.alpha[8], HALF);
    if (GRADIENT) weight_gradient_plane<false>(s, s.inner[A9], 1.0f, s.small[G6], f, to->single(2), to->bias(5), HALF);
    for (int pixel = TID; pixel < WINDOWS; pixel += THREADS) {
        int place = place_of(pixel, HALF);
        float pulled = narrow(s.small[G6], s.single[5], place, SROW) / scale;
        bool positive = s.sign9[FIRST][pixel];
        if (GRADIENT) slope[1] += pulled * negative_part(s.inner[A9][place], positive, s.alpha[7]);
        s.inner[V][place] = pulled * (positive ? 1.0f : s.alpha[7]);
    }
    SYNC();
    from_rows(s, w.dense(1), s.inner[V], s.vector);
    for (int j = TID; j < HP; j += THREADS) {
        float h = s.hidden_d[FIRST][j], pulled = s.vector[j];
        if (GRADIENT) slope[0] += pulled * (h > 0.0f ? 0.0f : h);
        s.vector[j] = pulled * (h > 0.0f ? 1.0f : s.alpha[6]);
    }
    SYNC();
    for (int i = TID / 32; i < ZP; i += WARPS) {
        float total = 0.0f;
        for (int j = TID % 32; j < HP; j += 32) total += w.thin(1)[i * HP + j] * s.vector[j];
        total = warp_sum(total, 32);
        if (TID % 32 == 0) s.latent[i] = total;
    }
    SYNC();
    for (int i = 0; i < ZP; i++) v_z[i] = s.latent[i];
    if (GRADIENT)
        for (int k = 0; k < 5; k++) to->slopes[6 + k] += slope[k] * (k < 2 ? to->factor : f);
    SYNC();
}

// Pull v at z back to the first convolution's output, map G1; the scale that it has there. v_z becomes v before the
// projection to the sphere, and s.vector is v at the hidden vector's input.
DEVICE float encode_back(Shared& s, const Weights& w, float v_z[ZP], const float z[ZP], float length, Gather* to) {
    if (SPHERE) {
        float along = 0.0f;
        for (int i = 0; i < ZP; i++) along += z[i] * v_z[i];
        for (int i = 0; i < ZP; i++) v_z[i] = (v_z[i] - z[i] * along) / larger(length, 1e-30f);
    }
    float slope[6] = {};
    for (int j = TID; j < HP; j += THREADS) {
        float pulled = 0.0f, h = s.hidden_e[j];
        for (int i = 0; i < ZP; i++) pulled += w.thin(0)[i * HP + j] * v_z[i];
        if (GRADIENT) slope[5] += pulled * (h > 0.0f ? 0.0f : h);
        s.vector[j] = pulled * (h > 0.0f ? 1.0f : s.alpha[5]);
    }
    SYNC();
    float most = 0.0f;
    for (int first = 0; first < WINDOWS; first += THREADS / OCTETS) {
        int pixel = first + TID / OCTETS;
        float row = to_row(w.dense(0), s.vector, pixel);
        if (TID % OCTETS == 0 && pixel < WINDOWS) {
            int place = place_of(pixel, HALF);
            bool positive = s.sign5[pixel];
            if (GRADIENT) slope[4] += row * negative_part(s.inner[A5][place], positive, s.alpha[4]);
            row *= positive ? 1.0f : s.alpha[4];
            most = larger(most, fabsf(row));
            s.inner[V][place] = row;
        }
    }
    float scale = 16.0f / larger(block_reduce<true>(s, most), 1e-30f), f = 1.0f / scale;
    if (GRADIENT) weight_gradient_plane<true>(s, s.inner[V], scale, s.small[A4], f, to->single(1), to->bias(4), HALF);
    slope[3] = widen_back(s.inner[V], scale, s.small[G4], s.sign4, s.single[3], s.alpha[3], HALF);
    if (GRADIENT) weight_gradient(s, s.small[A3], s.small[G4], f, to->mixing(2), to->bias(3), HALF);
    slope[2] = back(s, s.small[G4], s.small[G3], s.sign3, s.small[A3], 5, s.alpha[2], HALF);
    if (GRADIENT) weight_gradient(s, s.small[A2], s.small[G3], f, to->mixing(1), to->bias(2), HALF);
    slope[1] = back_pooled(s, s.small[G3], s.large[G2], s.small[A2], 3, s.alpha[1]);
    if (GRADIENT) weight_gradient(s, s.large[A1], s.large[G2], f, to->mixing(0), to->bias(1), SIDE);
    slope[0] = back(s, s.large[G2], s.large[G1], s.sign1, s.large[A1], 1, s.alpha[0], SIDE);
    if (GRADIENT) {
        weight_gradient_plane<false>(s, s.plane[0], 1.0f, s.large[G1], f, to->single(0), to->bias(0), SIDE);
        for (int k = 0; k < 6; k++) to->slopes[k] += slope[k] * (k < 4 ? f : 1.0f);
    }
    return scale;
}

// Weights and borders of zeros into shared memory.
DEVICE void prepare(Shared& s, const Weights& w) {
    u32* words = reinterpret_cast<u32*>(&s);
    for (int k = TID; k < (int)(sizeof(Shared) / 4); k += THREADS) words[k] = 0;
    SYNC();
    for (int k = TID; k < 10 * 9 * 32; k += THREADS) {
        int conv = k / 288, tap = k / 32 % 9, lane = k % 32;
        const u16* at = w.half + conv * 12 * C * C + ((tap / 3 * 4 + tap % 3) * C + 2 * (lane % 4)) * C + lane / 4;
        s.frag[conv][tap][lane] = (u32)at[0] | ((u32)at[C] << 16);
    }
    for (int k = TID; k < 8 * 9 * C; k += THREADS)
        s.single[k / (9 * C)][k % (9 * C)] = w.full[120 * C * C + k / (9 * C) * 16 * C + k % (9 * C)];
    const float* bias = w.thin(2);
    for (int k = TID; k < 9 * C + 16; k += THREADS) (k < 9 * C ? s.bias[k] : s.alpha[k - 9 * C]) = bias[k];
    SYNC();
}

#ifndef EMULATE
extern "C" __device__ const int shared_bytes = sizeof(Shared);
#endif
