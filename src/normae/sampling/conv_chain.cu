// A Langevin chain of the convolutional autoencoder with eight channels: one block takes one image through all steps.
//
// All activations stay in shared memory. A map has eight channels for each pixel, half precision, 16 bytes a pixel,
// which is a row of an 8x8 matrix of the tensor cores; a plane has one float for each pixel. Both have a border of one
// pixel that is zero and is never written: pixel (row, column) has the place (row + 1) (side + 2) + column + 1. Of the
// input of a nonlinearity only its sign is kept, a bit for each channel: the pullback needs no more.
//
// Compiled with SIDE, Z, HP, ZP, LATENT, METROPOLIS, ON, CLIP, ANNEAL, SPHERE, SIGMOID defined; see conv_cuda.py.

#define C 8
#define HALF (SIDE / 2)
#define ROW (SIDE + 2)
#define SROW (HALF + 2)
#define PIXELS (SIDE * SIDE)
#define WINDOWS (HALF * HALF)
#define THREADS 512
#define WARPS (THREADS / 32)
#define OCTETS (HP / 8)
#define PLANES (LATENT ? 4 : 7)

#define FREE 0
#define CLAMP 1
#define REJECT 2
#define GEODESIC 3
#define PROJECT 4
#define BY_VALUE 1
#define BY_ROW 2
#define BY_NORM 3

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Octet {
    u32 a, b, c, d;
};

struct Shared {
    alignas(16) u16 large[2][ROW * ROW * C];
    alignas(16) u16 small[2][SROW * SROW * C];
    alignas(16) u32 frag[10][9][32];
    alignas(16) float single[8][9 * C];
    float bias[9 * C], alpha[16];
    float plane[PLANES][ROW * ROW];
    float inner[2][SROW * SROW];
    alignas(16) float part[THREADS * 8];
    float hidden_e[HP], hidden_d[2][HP], vector[HP], latent[ZP], reduce[WARPS];
    u8 sign1[PIXELS], sign8[2][PIXELS];
    u8 sign2[WINDOWS], sign3[WINDOWS], sign4[WINDOWS], sign5[WINDOWS];
    u8 sign6[2][WINDOWS], sign7[2][WINDOWS], sign9[2][WINDOWS];
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

// Pull back through a convolution, and through the nonlinearity before it where there is a sign.
DEVICE void back(Shared& s, const u16* src, u16* dst, const u8* sign, int conv, float alpha, int side) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    u32 frag[9];
    load_frag(s, conv, lane, frag);
    for (int tile = TID / 32; tile < side * side / 16; tile += WARPS) {
        float c[4];
        product<false>(s, conv, src, frag, tile, side, lane, c);
        for (int k = 0; k < 2; k++) {
            int pixel = tile * 16 + g + 8 * k;
            u32 bits = sign ? (u32)sign[pixel] >> (2 * q) : 3u;
            float v0 = c[2 * k] * (bits & 1 ? 1.0f : alpha), v1 = c[2 * k + 1] * (bits & 2 ? 1.0f : alpha);
            put(dst, place_of(pixel, side), 2 * q, both(v0, v1));
        }
    }
    SYNC();
}

// The same through the small image's first convolution, the pooling and the nonlinearity before it.
DEVICE void back_pooled(Shared& s, const u16* src, u16* dst, int conv, float alpha) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    u32 frag[9];
    load_frag(s, conv, lane, frag);
    for (int tile = TID / 32; tile < WINDOWS / 16; tile += WARPS) {
        float c[4];
        product<false>(s, conv, src, frag, tile, HALF, lane, c);
        for (int k = 0; k < 2; k++) {
            int window = tile * 16 + g + 8 * k;
            u32 bits = (u32)s.sign2[window] >> (2 * q), choice = (u32)s.choice[window] >> (4 * q);
            u32 v0 = as_half(c[2 * k] * (bits & 1 ? 1.0f : alpha)), v1 = as_half(c[2 * k + 1] * (bits & 2 ? 1.0f : alpha));
            int corner = corner_of(window);
            for (u32 sub = 0; sub < 4; sub++) {
                u32 two = ((choice & 3) == sub ? v0 : 0u) | ((choice >> 2 & 3) == sub ? v1 << 16 : 0u);
                put(dst, corner + (int)(sub / 2) * ROW + (int)(sub % 2), 2 * q, two);
            }
        }
    }
    SYNC();
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

DEVICE void widen_back(const float* plane, float scale, u16* dst, const u8* sign, const float* w, float alpha, int side) {
    for (int pixel = TID; pixel < side * side; pixel += THREADS) {
        int place = place_of(pixel, side);
        float v[C];
        widened(plane, w, place, side + 2, v);
        u32 bits = sign[pixel];
        for (int c = 0; c < C; c++) v[c] *= scale * (bits >> c & 1 ? 1.0f : alpha);
        pack(dst + place * C, v);
    }
    SYNC();
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

DEVICE void spread_back(const u16* src, u16* dst, const u8* sign, float alpha) {
    for (int window = TID; window < WINDOWS; window += THREADS) {
        int corner = corner_of(window), r = window / HALF, c = window % HALF;
        float v[C] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int dy = 0; dy < 4; dy++)
#pragma unroll
            for (int dx = 0; dx < 4; dx++) {
                float x[C], weight = share(dy, r) * share(dx, c);
                unpack(src + (corner + (dy - 1) * ROW + dx - 1) * C, x);
                for (int i = 0; i < C; i++) v[i] += weight * x[i];
            }
        u32 bits = sign[window];
        for (int i = 0; i < C; i++) v[i] *= bits >> i & 1 ? 1.0f : alpha;
        pack(dst + place_of(window, HALF) * C, v);
    }
    SYNC();
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

// --- dense layers; the matrix has shape (WINDOWS, HP)

DEVICE void from_rows(Shared& s, const u16* matrix, const float* plane, float* out) {
    int octet = TID % OCTETS, first = TID / OCTETS;
    float acc[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int pixel = first; pixel < WINDOWS; pixel += THREADS / OCTETS) {
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
    float x[8], total = 0.0f;
    unpack(matrix + (pixel < WINDOWS ? pixel : WINDOWS - 1) * HP + octet * 8, x);
    for (int k = 0; k < 8; k++) total += x[k] * hidden[octet * 8 + k];
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
    widen(s.plane[0], s.large[0], s.sign1, s.single[0], s.bias, s.alpha[0], SIDE);
    forward_pooled(s, s.large[0], s.small[0], 0, s.bias + C, s.alpha[1]);
    forward(s, s.small[0], s.small[1], s.sign3, 2, s.bias + 2 * C, s.alpha[2], HALF);
    forward(s, s.small[1], s.small[0], s.sign4, 4, s.bias + 3 * C, s.alpha[3], HALF);
    for (int pixel = TID; pixel < WINDOWS; pixel += THREADS) {
        int place = place_of(pixel, HALF);
        float h = narrow(s.small[0], s.single[2], place, SROW) + s.bias[4 * C];
        s.sign5[pixel] = h > 0.0f;
        s.inner[0][place] = prelu(h, s.alpha[4]);
    }
    SYNC();
    from_rows(s, w.dense(0), s.inner[0], s.vector);
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
            s.inner[0][place_of(pixel, HALF)] = prelu(h, s.alpha[7]);
        }
    }
    SYNC();
    widen(s.inner[0], s.small[0], s.sign6[FIRST], s.single[4], s.bias + 5 * C, s.alpha[8], HALF);
    forward(s, s.small[0], s.small[1], s.sign7[FIRST], 6, s.bias + 6 * C, s.alpha[9], HALF);
    spread(s.small[1], s.large[0]);
    forward(s, s.large[0], s.large[1], s.sign8[FIRST], 8, s.bias + 7 * C, s.alpha[10], SIDE);
    float total = 0.0f, most = 0.0f;
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        float out = narrow(s.large[1], s.single[6], place, ROW) + s.bias[8 * C], derivative = 1.0f;
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
template <bool FIRST> DEVICE void decode_back(Shared& s, const Weights& w, float largest, float v_z[ZP]) {
    float scale = 16.0f / larger(largest, 1e-30f);
    widen_back(s.plane[2], scale, s.large[0], s.sign8[FIRST], s.single[7], s.alpha[10], SIDE);
    back(s, s.large[0], s.large[1], 0, 9, 1.0f, SIDE);
    spread_back(s.large[1], s.small[0], s.sign7[FIRST], s.alpha[9]);
    back(s, s.small[0], s.small[1], s.sign6[FIRST], 7, s.alpha[8], HALF);
    for (int pixel = TID; pixel < WINDOWS; pixel += THREADS) {
        int place = place_of(pixel, HALF);
        float pulled = narrow(s.small[1], s.single[5], place, SROW) / scale;
        s.inner[1][place] = pulled * (s.sign9[FIRST][pixel] ? 1.0f : s.alpha[7]);
    }
    SYNC();
    from_rows(s, w.dense(1), s.inner[1], s.vector);
    for (int j = TID; j < HP; j += THREADS) s.vector[j] *= s.hidden_d[FIRST][j] > 0.0f ? 1.0f : s.alpha[6];
    SYNC();
    for (int i = TID / 32; i < ZP; i += WARPS) {
        float total = 0.0f;
        for (int j = TID % 32; j < HP; j += 32) total += w.thin(1)[i * HP + j] * s.vector[j];
        total = warp_sum(total, 32);
        if (TID % 32 == 0) s.latent[i] = total;
    }
    SYNC();
    for (int i = 0; i < ZP; i++) v_z[i] = s.latent[i];
    SYNC();
}

// Pull v at z back to the first convolution's output, large map 1; the scale that it has there.
DEVICE float encode_back(Shared& s, const Weights& w, float v_z[ZP], const float z[ZP], float length) {
    if (SPHERE) {
        float along = 0.0f;
        for (int i = 0; i < ZP; i++) along += z[i] * v_z[i];
        for (int i = 0; i < ZP; i++) v_z[i] = (v_z[i] - z[i] * along) / larger(length, 1e-30f);
    }
    for (int j = TID; j < HP; j += THREADS) {
        float pulled = 0.0f;
        for (int i = 0; i < ZP; i++) pulled += w.thin(0)[i * HP + j] * v_z[i];
        s.vector[j] = pulled * (s.hidden_e[j] > 0.0f ? 1.0f : s.alpha[5]);
    }
    SYNC();
    float most = 0.0f;
    for (int first = 0; first < WINDOWS; first += THREADS / OCTETS) {
        int pixel = first + TID / OCTETS;
        float v = to_row(w.dense(0), s.vector, pixel);
        if (pixel < WINDOWS) {
            v *= s.sign5[pixel] ? 1.0f : s.alpha[4];
            most = larger(most, fabsf(v));
            if (TID % OCTETS == 0) s.inner[1][place_of(pixel, HALF)] = v;
        }
    }
    float scale = 16.0f / larger(block_reduce<true>(s, most), 1e-30f);
    widen_back(s.inner[1], scale, s.small[0], s.sign4, s.single[3], s.alpha[3], HALF);
    back(s, s.small[0], s.small[1], s.sign3, 5, s.alpha[2], HALF);
    back_pooled(s, s.small[1], s.large[0], 3, s.alpha[1]);
    back(s, s.large[0], s.large[1], s.sign1, 1, s.alpha[0], SIDE);
    return scale;
}

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
    decode_back<false>(s, w, largest, v_z);
    float scale = encode_back(s, w, v_z, z, length), most = 0.0f;
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int place = place_of(pixel, SIDE);
        float pulled = narrow(s.large[1], s.single[1], place, ROW) / scale;
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
        decode_back<true>(s, w, block_reduce<true>(s, most), grad);
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
