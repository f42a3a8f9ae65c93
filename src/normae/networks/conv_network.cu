// The convolutional autoencoder with eight channels for one image and one block of threads: forward and pullback.
//
// All activations stay in shared memory. A map has eight channels for each pixel, half precision, 16 bytes a pixel,
// which is a row of an 8x8 matrix of the tensor cores; a plane has one float for each pixel. Both have a border of one
// pixel that is zero: pixel (row, column) has the place (row + 1) (side + 2) + column + 1. Of the input of a nonlinearity
// its sign is kept, a bit for each channel. Two blocks of a chain of the paper's network fit on a multiprocessor.
//
// Compiled before conv_chain.cu, conv_energies.cu or conv_gradient.cu, with SIDE, Z, H, HP, ZP, SPHERE, SIGMOID, and:
// LATENT (a chain of latent points: a first decoding), GRADIENT (of the weights: all activations are kept). See
// conv_cuda.py. One file although it is long: every stage reads the one layout of shared memory and its neighbours'
// barriers, and the compiler gets it as one text.

#define C 8
#define HALF (SIDE / 2)
#define ROW (SIDE + 2)
#define SROW (HALF + 2)
#define PIXELS (SIDE * SIDE)
#define WINDOWS (HALF * HALF)
#define THREADS 512
#define WARPS (THREADS / 32)
#define BLOCKS (HP > 64 ? HP / 64 : 1)  // of 64 columns of a dense matrix
#define SPLITS (WARPS / BLOCKS)         // of its rows
#define PARTS (9 * C * C + C)           // gradients of a convolution and its bias
#define NARROW 10                       // number of the first convolution to one channel, behind those of eight

// Where activations stand among the maps: in turns, or each by itself as long as a gradient needs it.
#define LARGE_MAPS (GRADIENT ? 3 : 2)
#define SMALL_MAPS (GRADIENT ? 6 : 2)
#define INNER_PLANES (GRADIENT ? 3 : 1)
enum Large { A1 = 0, U = GRADIENT ? 1 : 0, A8 = GRADIENT ? 2 : 1, G8 = GRADIENT ? 2 : 0, GU = 1, G2 = GRADIENT ? 1 : 0,
             G1 = GRADIENT ? 2 : 1 };
enum Small { A2 = 0, A3 = 1, A4 = GRADIENT ? 2 : 0, A6 = GRADIENT ? 3 : 0, A7 = GRADIENT ? 4 : 1, G7 = GRADIENT ? 5 : 0,
             G6 = GRADIENT ? 4 : 1, G4 = GRADIENT ? 2 : 0, G3 = GRADIENT ? 5 : 1 };
enum Inner { A5 = 0, V = GRADIENT ? 1 : 0, A9 = GRADIENT ? 2 : 0 };

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Octet {
    u32 a, b, c, d;
};

// A chain sums the rows of a dense layer (`rows`) where its large maps stand, which no one needs at that time. `frag` has
// the convolutions of eight channels as 8x8 matrices (out, in) for each tap, `fine` the weights of those to one channel
// as a sum of two halves, `single` those with one channel on one side; the pullback reads the same, turned around.
struct Shared {
    union {
        alignas(16) u16 large[LARGE_MAPS][ROW * ROW * C];
        alignas(16) float rows[GRADIENT ? 4 : SPLITS * HP];
    };
    alignas(16) float part[GRADIENT ? WARPS * PARTS : 4];
    alignas(16) u16 small[SMALL_MAPS][SROW * SROW * C];
    alignas(16) u32 frag[5][9][32];
    alignas(16) float single[4][9 * C];
    alignas(16) u16 fine[4][9][2][C];
    alignas(16) u16 split[GRADIENT ? 2 * HP : 8];  // a chain has it in `vector`, which it does not need at that time
    alignas(16) float vector[HP], latent[ZP], pulled[ZP], proposal[ZP];
    float bias[9 * C], alpha[16];
    float plane[2][ROW * ROW];
    float inner[INNER_PLANES][SROW * SROW];
    float residual[GRADIENT ? 1 : PIXELS];
    float hidden_e[HP], hidden_d[1 + LATENT][HP], reduce[2][WARPS];
    u8 sign1[PIXELS], sign8[1 + LATENT][PIXELS];
    u8 sign2[WINDOWS], sign3[WINDOWS], sign4[WINDOWS], sign5[WINDOWS];
    u8 sign6[1 + LATENT][WINDOWS], sign7[1 + LATENT][WINDOWS], sign9[1 + LATENT][WINDOWS];
    u16 choice[WINDOWS];
};

#ifdef EMULATE  // the tests run the same source on a CPU
#include <emulate.h>
#else
#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, GRADIENT ? 1 : 2)
#define SYNC() __syncthreads()
#define TID thread_index()
#define BLOCK_X ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define BLOCKS_X ((int)gridDim.x)
#define BLOCKS_Y ((int)gridDim.y)
extern __shared__ __align__(16) unsigned char memory[];
#define SHARED (*reinterpret_cast<Shared*>(memory))

// Read anew in each stage: what follows from it is not kept over the stages, for which there are not enough registers.
DEVICE int thread_index() {
    int k;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(k));
    return k;
}
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
DEVICE u32 both(float a, float b) {
    u32 two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(b), "f"(a));
    return two;
}
DEVICE void halves(u32 two, float& a, float& b) {
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(a), "=f"(b) : "r"(two));
}
// Of weights that are read once in a long while: not to displace others from the nearest cache.
template <int OFFSET> DEVICE Octet fetch(const u16* at) {
    Octet o;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4 + %5];"
        : "=r"(o.a), "=r"(o.b), "=r"(o.c), "=r"(o.d) : "l"(at), "n"(2 * OFFSET));
    return o;
}
// COUNT matrices of 8x8 halves, of which each thread knows the address of a row, as a product takes them, or transposed.
typedef u32 Address;
DEVICE Address address_of(const void* at) { return (Address)__cvta_generic_to_shared(at); }
template <int COUNT, bool TURNED> DEVICE void load_matrices(u32* r, Address at) {
    if (COUNT == 4 && !TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    if (COUNT == 4 && TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    if (COUNT == 2 && !TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
    if (COUNT == 2 && TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
    if (COUNT == 1 && !TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(at) : "memory");
    if (COUNT == 1 && TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(at) : "memory");
}
// c += a b, of shape (16, 16) (16, 8), and of (16, 8) (8, 8).
DEVICE void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply_short(float c[4], const u32 a[2], u32 b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}
DEVICE u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
DEVICE u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }
DEVICE u32 shuffle(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE float shuffle(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEVICE u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }
#endif

// --- places

// (row + 1) (side + 2) + column + 1, and the same of a window's first pixel.
DEVICE int place_of(int pixel, int side) { return pixel + 2 * (int)((u32)pixel / (u32)side) + side + 3; }
DEVICE int corner_of(int window) { return 2 * window + (int)((u32)window / HALF) * (SIDE + 4) + ROW + 1; }
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

// --- tensor cores: the convolution of a map at the 32 pixels of two tiles
//
// A thread gets channels 2 q and 2 q + 1 of the pixels g + 8 j of the pair, j = 0 to 3, with g = lane / 4, q = lane % 4;
// four threads have all of a pixel. Pixels of the second tile are not there (and not to be used) where there is none.

DEVICE bool second_of(int pair, int side) { return side * side / 16 % 2 == 0 || 2 * pair + 1 < side * side / 16; }

// Convolutions with odd numbers are pullbacks: matrices transposed, and seen from the pixel at the other end.
DEVICE int shift_of(int conv, int tap, int side) {
    int shift = (tap / 3 - 1) * (side + 2) + tap % 3 - 1;
    return conv % 2 ? -shift : shift;
}

DEVICE void load_frag(const Shared& s, int conv, int lane, u32 frag[9]) {
    if (conv >= NARROW) {
#pragma unroll
        for (int tap = 0; tap < 9; tap++)
            frag[tap] = *reinterpret_cast<const u32*>(s.fine[(conv - NARROW) / 2][tap][lane / 4 % 2] + 2 * (lane % 4));
        return;
    }
    Address at = address_of(s.frag[conv / 2]), row = at + 16 * lane, last = at + 1024 + 16 * (lane % 8);
    if (conv % 2)
        load_matrices<4, true>(frag, row), load_matrices<4, true>(frag + 4, row + 512), load_matrices<1, true>(frag + 8, last);
    else
        load_matrices<4, false>(frag, row), load_matrices<4, false>(frag + 4, row + 512),
            load_matrices<1, false>(frag + 8, last);
}

template <bool POOLED> DEVICE void product(int conv, const u16* map, const u32* frag, int pair, int side, int lane, float c[8]) {
    Address base[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int tile = k && !second_of(pair, side) ? 2 * pair : 2 * pair + k;
        base[k] = address_of(map + tile_place<POOLED>(tile, lane % 16, side) * C);
        c[4 * k] = c[4 * k + 1] = c[4 * k + 2] = c[4 * k + 3] = 0.0f;
    }
#pragma unroll
    for (int two = 0; two < 4; two++) {
        int shift = 16 * (lane < 16 ? shift_of(conv, 2 * two, side) : shift_of(conv, 2 * two + 1, side));
#pragma unroll
        for (int k = 0; k < 2; k++) {
            u32 a[4];
            load_matrices<4, false>(a, base[k] + shift);
            multiply(c + 4 * k, a, frag[2 * two], frag[2 * two + 1]);
        }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        u32 a[2];
        load_matrices<2, false>(a, base[k] + 16 * shift_of(conv, 8, side));
        multiply_short(c + 4 * k, a, frag[8]);
    }
}

// Give each pair of tiles of the convolution to the warp that has it.
template <bool POOLED, class Give> DEVICE void convolve(Shared& s, const u16* src, int conv, int side, Give give) {
    int lane = TID % 32;
    u32 frag[9];
    load_frag(s, conv, lane, frag);
#pragma unroll 1
    for (int pair = TID / 32; pair < (side * side / 16 + 1) / 2; pair += WARPS) {
        float c[8];
        product<POOLED>(conv, src, frag, pair, side, lane, c);
        give(pair, c);
    }
}

DEVICE void put(u16* map, int place, u32 two) { *reinterpret_cast<u32*>(map + place * C) = two; }

// What two channels give to the gradient of the slope: v before the nonlinearity's derivative times min(h, 0).
DEVICE float slope_part(const u16* behind, int place, int channel, u32 bits, float v0, float v1, float alpha) {
    u32 two = *reinterpret_cast<const u32*>(behind + place * C + channel);
    float h0 = negative_part(as_float((u16)two), bits & 1, alpha);
    return v0 * h0 + v1 * negative_part(as_float((u16)(two >> 16)), bits >> 1 & 1, alpha);
}

DEVICE u32 quad_or(u32 v) {
    v |= shuffle(v, 1);
    return v | shuffle(v, 2);
}

// A convolution and its nonlinearity.
DEVICE void forward(Shared& s, const u16* src, u16* dst, u8* sign, int conv, const float* bias, float alpha, int side) {
    int g = TID % 32 / 4, q = TID % 4;
    float b0 = bias[2 * q], b1 = bias[2 * q + 1];
    convolve<false>(s, src, conv, side, [&](int pair, const float c[8]) {
        u32 bits = 0;
        bool second = second_of(pair, side);
        for (int j = 0; j < 4; j++) {
            float h0, h1;
            halves(both(c[2 * j] + b0, c[2 * j + 1] + b1), h0, h1);
            bits |= (h0 > 0.0f ? 1u << 8 * j : 0u) | (h1 > 0.0f ? 2u << 8 * j : 0u);
            int place = place_of(pair * 32 + 8 * j + g, side);
            if (j < 2 || second) put(dst + 2 * q, place, both(prelu(h0, alpha), prelu(h1, alpha)));
        }
        bits = quad_or(bits << 2 * q);
        if (q < 2 || second) sign[pair * 32 + 8 * q + g] = (u8)(bits >> 8 * q);
    });
    SYNC();
}

// A convolution, its nonlinearity, and the largest value of each window, the first of equals. Threads g and g ^ 4 have
// two pixels each of the same windows, one of either tile; each of them takes one window.
DEVICE void forward_pooled(Shared& s, const u16* src, u16* dst, int conv, const float* bias, float alpha) {
    int g = TID % 32 / 4, q = TID % 4;
    float b0 = bias[2 * q], b1 = bias[2 * q + 1];
    convolve<true>(s, src, conv, SIDE, [&](int pair, const float c[8]) {
        u32 value[2], which[2];
        for (int k = 0; k < 2; k++) {
            float h0, h1, later0, later1;
            halves(both(c[4 * k] + b0, c[4 * k + 1] + b1), h0, h1);
            halves(both(c[4 * k + 2] + b0, c[4 * k + 3] + b1), later0, later1);
            which[k] = g / 4 * 5;
            if (prelu(later0, alpha) > prelu(h0, alpha)) h0 = later0, which[k] += 2;
            if (prelu(later1, alpha) > prelu(h1, alpha)) h1 = later1, which[k] += 8;
            value[k] = both(h0, h1);
        }
        bool first = g < 4;
        u32 mine = first ? value[0] : value[1], at = first ? which[0] : which[1];
        u32 yours = shuffle(first ? value[1] : value[0], 16), there = shuffle(first ? which[1] : which[0], 16);
        u32 bits = 0;
        float h[2], other[2];
        halves(mine, h[0], h[1]);
        halves(yours, other[0], other[1]);
        for (int k = 0; k < 2; k++) {
            float a = prelu(h[k], alpha), b = prelu(other[k], alpha);
            u32 here = at >> 2 * k & 3, also = there >> 2 * k & 3;
            if (b > a || (b == a && also < here)) h[k] = other[k], here = also, a = b;
            bits |= here << 2 * (2 * q + k);
            bits |= h[k] > 0.0f ? 0x10000u << (2 * q + k) : 0u;
            h[k] = a;
        }
        bits = quad_or(bits);
        int window = pair * 8 + g;
        put(dst + 2 * q, place_of(window, HALF), both(h[0], h[1]));
        if (q == 0) s.choice[window] = (u16)bits, s.sign2[window] = (u8)(bits >> 16);
    });
    SYNC();
}

// Pull back through a convolution, and through the nonlinearity before it where there is a sign; POOLED through pooling
// between them, to windows. With the activations behind the nonlinearity (GRADIENT), a thread's part of its slope's
// gradient is returned.
template <bool POOLED = false>
DEVICE float back(Shared& s, const u16* src, u16* dst, const u8* sign, const u16* behind, int conv, float alpha, int side) {
    int g = TID % 32 / 4, q = TID % 4;
    float slope = 0.0f;
    convolve<false>(s, src, conv, side, [&](int pair, const float c[8]) {
        bool second = second_of(pair, side);
        for (int j = 0; j < 4; j++) {
            if (j >= 2 && !second) continue;
            int pixel = pair * 32 + 8 * j + g, place = place_of(pixel, side);
            u32 bits = sign ? (u32)sign[pixel] >> (2 * q) : 3u;
            if (GRADIENT && behind) slope += slope_part(behind, place, 2 * q, bits, c[2 * j], c[2 * j + 1], alpha);
            u32 two = both(c[2 * j] * (bits & 1 ? 1.0f : alpha), c[2 * j + 1] * (bits & 2 ? 1.0f : alpha));
            u32 choice = POOLED ? (u32)s.choice[pixel] >> (4 * q) : 0u;
            for (u32 sub = 0; POOLED && sub < 4; sub++) {
                u32 mask = ((choice & 3) == sub ? 0xffffu : 0u) | ((choice >> 2 & 3) == sub ? 0xffff0000u : 0u);
                put(dst + 2 * q, corner_of(pixel) + (int)(sub / 2) * ROW + (int)(sub % 2), two & mask);
            }
            if (!POOLED) put(dst + 2 * q, place, two);
        }
    });
    SYNC();
    return slope;
}

// A convolution to one channel, `give`n for each pixel to one thread. Its weights are sums of two halves, which are the
// even and the odd channels of the product, so that four threads have the same numbers and each takes another pixel.
template <class Give> DEVICE void narrow(Shared& s, const u16* map, int conv, int side, Give give) {
    int g = TID % 32 / 4, q = TID % 4;
    convolve<false>(s, map, NARROW + conv, side, [&](int pair, const float c[8]) {
        float low = q % 2 ? c[2] + c[3] : c[0] + c[1], high = q % 2 ? c[6] + c[7] : c[4] + c[5];
        int pixel = pair * 32 + 8 * q + g;
        if (q < 2 || second_of(pair, side)) give(pixel, place_of(pixel, side), q < 2 ? low : high);
    });
}

// --- convolutions with one channel on one side, and upsampling: a thread has all channels of a pixel

DEVICE void unpack(const Octet& o, float x[C]) {
    halves(o.a, x[0], x[1]), halves(o.b, x[2], x[3]), halves(o.c, x[4], x[5]), halves(o.d, x[6], x[7]);
}
DEVICE void unpack(const u16* at, float x[C]) { unpack(*reinterpret_cast<const Octet*>(at), x); }

DEVICE void pack(u16* at, const float x[C]) {
    Octet o = {both(x[0], x[1]), both(x[2], x[3]), both(x[4], x[5]), both(x[6], x[7])};
    *reinterpret_cast<Octet*>(at) = o;
}

template <bool FLIP> DEVICE void widened(const float* plane, const float* w, int place, int row, float acc[C]) {
    for (int c = 0; c < C; c++) acc[c] = 0.0f;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        float x = plane[place + (tap / 3 - 1) * row + tap % 3 - 1];
#pragma unroll
        for (int c = 0; c < C; c++) acc[c] += x * w[(FLIP ? 8 - tap : tap) * C + c];
    }
}

DEVICE void widen(const float* plane, u16* dst, u8* sign, const float* w, const float* bias, float alpha, int side) {
#pragma unroll 1
    for (int pixel = TID; pixel < side * side; pixel += THREADS) {
        int place = place_of(pixel, side);
        float h[C];
        widened<false>(plane, w, place, side + 2, h);
        u32 bits = 0;
        for (int c = 0; c < C; c += 2) {
            halves(both(h[c] + bias[c], h[c + 1] + bias[c + 1]), h[c], h[c + 1]);
            bits |= (h[c] > 0.0f ? 1u << c : 0u) | (h[c + 1] > 0.0f ? 2u << c : 0u);
            h[c] = prelu(h[c], alpha), h[c + 1] = prelu(h[c + 1], alpha);
        }
        sign[pixel] = (u8)bits;
        pack(dst + place * C, h);
    }
    SYNC();
}

// Pull back `scale` times a plane; the part of the slope's gradient is of the activations in dst, which are replaced.
DEVICE float widen_back(const float* plane, float scale, u16* dst, const u8* sign, const float* w, float alpha, int side) {
    float slope = 0.0f;
#pragma unroll 1
    for (int pixel = TID; pixel < side * side; pixel += THREADS) {
        int place = place_of(pixel, side);
        float v[C], a[C];
        widened<true>(plane, w, place, side + 2, v);
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

// Bilinear upsampling by two: 3/4 of the nearest pixel and 1/4 of the next along each axis; edges are repeated.
DEVICE void spread(const u16* src, u16* dst) {
#pragma unroll 1
    for (int pixel = TID; pixel < PIXELS; pixel += THREADS) {
        int r = (u32)pixel / SIDE, c = pixel - r * SIDE, near_r = r / 2, near_c = c / 2;
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
#pragma unroll 1
    for (int window = TID; window < WINDOWS; window += THREADS) {
        int corner = corner_of(window), r = (u32)window / HALF, c = window - r * HALF, place = place_of(window, HALF);
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

// Every thread has the sum and the largest. A barrier must stand between two of these.
template <bool SUM, bool MOST> DEVICE void block_reduce(Shared& s, float& sum, float& most) {
    for (int m = 16; m > 0; m /= 2) {
        if (SUM) sum += shuffle(sum, m);
        if (MOST) most = larger(most, shuffle(most, m));
    }
    if (SUM && TID % 32 == 0) s.reduce[0][TID / 32] = sum;
    if (MOST && TID % 32 == 0) s.reduce[1][TID / 32] = most;
    SYNC();
    sum = most = 0.0f;
    for (int k = 0; k < WARPS; k++) {
        if (SUM) sum += s.reduce[0][k];
        if (MOST) most = larger(most, s.reduce[1][k]);
    }
}
DEVICE float block_sum(Shared& s, float v) {
    float unused;
    block_reduce<true, false>(s, v, unused);
    return v;
}
// Of values that are not negative.
DEVICE float block_most(Shared& s, float v) {
    float unused;
    block_reduce<false, true>(s, unused, v);
    return v;
}

// --- gradients of the weights

// Where a block adds them, in packed order (conv_cuda); those of slopes are gathered by each thread.
struct Gather {
    float* out;
    float factor;
    float slopes[11];
    DEVICE float* mixing(int k) const { return out + k * 9 * C * C; }
    DEVICE float* single(int k) const { return out + 45 * C * C + k * 9 * C; }
    DEVICE float* bias(int k) const { return out + 45 * C * C + 36 * C + k * C; }
    DEVICE float* slope(int k) const { return bias(9) + k; }
};

// The right factor: pixels of a tile by channels of a map; this thread's part of their sum over pixels.
DEVICE void right_factor(const u16* map, int tile, int side, int lane, u32& b0, u32& b1, float& bias) {
    u32 b[2];
    load_matrices<2, true>(b, address_of(map + place_of(tile * 16 + lane % 16, side) * C));
    b0 = b[0], b1 = b[1];
    bias += as_float((u16)b0) + as_float((u16)(b0 >> 16)) + as_float((u16)b1) + as_float((u16)(b1 >> 16));
}

// Sums over the pixels of a tile of the input below the stencil times v: rows are (tap, channel in), two taps a product.
DEVICE void outer(const u16* x, const u16* v, int tile, int side, int lane, float acc[5][4], float& bias) {
    u32 b0, b1;
    right_factor(v, tile, side, lane, b0, b1, bias);
    Address base = address_of(x + place_of(tile * 16 + lane % 8 + 8 * (lane >= 16), side) * C);
#pragma unroll
    for (int pair = 0; pair < 5; pair++) {
        int tap = pair < 4 ? 2 * pair + lane / 8 % 2 : 8;
        u32 a[4];
        load_matrices<4, true>(a, base + ((tap / 3 - 1) * (side + 2) + tap % 3 - 1) * 16);
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
        *(e < 9 * C * C ? out + e : bias_out + e - 9 * C * C) += factor * total;
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
        behind = block_sum(s, behind);
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

// Zeros around the large maps where `rows` was. They are read behind the next barrier or later.
DEVICE void clear_border(Shared& s) {
    Octet nothing = {0, 0, 0, 0};
#pragma unroll 1
    for (int k = TID; k < SPLITS * HP / 4 && k < LARGE_MAPS * ROW * ROW; k += THREADS) {
        int row = k % (ROW * ROW) / ROW, column = k % ROW;
        if (row == 0 || row == ROW - 1 || column == 0 || column == ROW - 1)
            reinterpret_cast<Octet*>(s.large)[k] = nothing;
    }
}

// A vector as the sum of two halves, for the tensor cores.
DEVICE u16* split_of(Shared& s) { return GRADIENT ? s.split : reinterpret_cast<u16*>(s.vector); }
DEVICE void put_split(Shared& s, int j, float value) {
    u16 high = as_half(value);
    split_of(s)[j] = high;
    split_of(s)[HP + j] = as_half(value - as_float(high));
}

// Columns behind the last are not read: instead those before it once more, which are in the same piece of memory.
#define LAST ((H - 1) / 8 * 8)
DEVICE int within(int column) { return column < LAST ? column : LAST; }

// Eight columns of the matrix at four of 16 pixels, from `at` on.
struct Rows {
    Octet o[4];
    DEVICE void fetch_from(const u16* at) {
        o[0] = fetch<0>(at), o[1] = fetch<HP>(at), o[2] = fetch<8 * HP>(at), o[3] = fetch<9 * HP>(at);
    }
};
DEVICE void add_word(float c[4], u32 a, u32 b, u32 c0, u32 d, u32 right0, u32 right1) {
    u32 left[4] = {low_halves(a, b), high_halves(a, b), low_halves(c0, d), high_halves(c0, d)};
    multiply(c, left, right0, right1);
}

// A row for each pixel of the plane times its value; `give` the sums to the threads that have them. By tensor cores: the
// left factor is the matrix transposed, the right one has in even columns `scale` times the values as halves, in odd ones
// what these lack. A warp has 64 columns and a share of the pixels. Rows g and g + 8 of a product are columns 8 g + 2 k
// and 8 g + 2 k + 1 of the matrix, k for four products.
template <class Give> DEVICE void from_rows(Shared& s, const u16* matrix, const float* plane, float scale, Give give) {
    int lane = TID % 32, g = lane / 4, q = lane % 4, warp = TID / 32, column = warp % BLOCKS * 64 + 8 * g;
    float* part = GRADIENT ? s.part : s.rows;
    float acc[4][4] = {};
#pragma unroll 1
    for (int tile = warp / BLOCKS; tile < WINDOWS / 16; tile += 2 * SPLITS) {
        Rows rows[2];
        const u16* at = matrix + (tile * 16 + 2 * q) * HP + within(column);
        rows[0].fetch_from(at);
        rows[1].fetch_from(tile + SPLITS < WINDOWS / 16 ? at + SPLITS * 16 * HP : at);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (tile + k * SPLITS >= WINDOWS / 16) break;
            u32 right[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int pixel = (tile + k * SPLITS) * 16 + 2 * q + 8 * r;
                float a = plane[place_of(pixel, HALF)] * scale, b = plane[place_of(pixel + 1, HALF)] * scale, x, y;
                right[r] = both(a, b);
                halves(right[r], x, y);
                if (g % 2) right[r] = both(a - x, b - y);
            }
            const Octet* o = rows[k].o;
            add_word(acc[0], o[0].a, o[1].a, o[2].a, o[3].a, right[0], right[1]);
            add_word(acc[1], o[0].b, o[1].b, o[2].b, o[3].b, right[0], right[1]);
            add_word(acc[2], o[0].c, o[1].c, o[2].c, o[3].c, right[0], right[1]);
            add_word(acc[3], o[0].d, o[1].d, o[2].d, o[3].d, right[0], right[1]);
        }
    }
    float even[4], odd[4];
    for (int k = 0; k < 4; k++) even[k] = acc[k][0] + acc[k][1], odd[k] = acc[k][2] + acc[k][3];
    float first = q < 2 ? (q ? even[1] : even[0]) : q == 2 ? even[2] : even[3];
    float second = q < 2 ? (q ? odd[1] : odd[0]) : q == 2 ? odd[2] : odd[3];
    float* at = part + warp / BLOCKS * HP + column + 2 * q;
    if (column < HP) at[0] = column < H ? first : 0.0f, at[1] = column < H ? second : 0.0f;
    SYNC();
    int j = TID;
    if (j < HP) {
        float total = 0.0f;
        for (int k = 0; k < SPLITS; k++) total += part[k * HP + j];
        give(j, total / scale);
    }
    SYNC();
    if (!GRADIENT) clear_border(s);
}

// The product of each pixel's row with the vector that was split, `give`n to one thread. By tensor cores: 16 rows of the
// matrix are the left factor, of which a thread reads eight columns at a time; the right one is as above.
template <class Give> DEVICE void to_rows(Shared& s, const u16* matrix, Give give) {
    int lane = TID % 32, g = lane / 4, q = lane % 4;
    const u16* vector = split_of(s) + g % 2 * HP + 8 * q;
#pragma unroll 1
    for (int tile = TID / 32; tile < WINDOWS / 16; tile += WARPS) {
        float c[4] = {}, d[4] = {};
#pragma unroll
        for (int start = 0; start < H; start += 128) {
            const u16* at = matrix + (tile * 16 + g) * HP;
            Octet o[4][2];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (start + 32 * k >= H) break;
                const u16* here = at + within(start + 32 * k + 8 * q);
                o[k][0] = fetch<0>(here), o[k][1] = fetch<8 * HP>(here);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (start + 32 * k >= H) break;
                Octet right = {0, 0, 0, 0};
                if (start + 32 * k + 8 * q < H) right = *reinterpret_cast<const Octet*>(vector + start + 32 * k);
                u32 left[4] = {o[k][0].a, o[k][1].a, o[k][0].b, o[k][1].b};
                multiply(c, left, right.a, right.b);
                left[0] = o[k][0].c, left[1] = o[k][1].c, left[2] = o[k][0].d, left[3] = o[k][1].d;
                multiply(d, left, right.c, right.d);
            }
        }
        float low = c[0] + c[1] + (d[0] + d[1]), high = c[2] + c[3] + (d[2] + d[3]);
        if (q < 2) give(tile * 16 + g + 8 * q, q ? high : low);
    }
}

// Weights of a model in packed order (conv_cuda): in half precision, and in float32.
struct Weights {
    const u16* half;
    const float* full;
    DEVICE const u16* dense(int k) const { return half + 45 * C * C + 36 * C + k * WINDOWS * HP; }
    DEVICE const float* thin(int k) const { return full + 45 * C * C + 36 * C + 2 * WINDOWS * HP + k * ZP * HP; }
    DEVICE const float* bias_hidden(int k) const { return thin(2) + 9 * C + 16 + k * HP; }
    DEVICE const float* bias_latent() const { return bias_hidden(2); }
    DEVICE const float* bias_small() const { return bias_hidden(2) + ZP; }
};

// --- the network

// Of the output, by what goes into its nonlinearity.
DEVICE float derivative_of(float out) { return SIGMOID ? out * (1.0f - out) : 1.0f; }

// A dense layer to the latent space; the length by which a point is divided (SPHERE) is that of all of its values.
DEVICE void to_latent(Shared& s, const float* thin, const float* bias, float* out) {
#pragma unroll 1
    for (int i = TID / 32; i < ZP; i += WARPS) {
        float total = 0.0f;
#pragma unroll
        for (int j = TID % 32; j < HP; j += 32) total += thin[i * HP + j] * s.vector[j];
        total = warp_sum(total, 32);
        if (TID % 32 == 0) out[i] = total + (bias ? bias[i] : 0.0f);
    }
    SYNC();
}

// From plane 0 to s.latent and s.hidden_e; the latent point is s.latent times the returned factor.
DEVICE float encode(Shared& s, const Weights& w) {
    widen(s.plane[0], s.large[A1], s.sign1, s.single[0], s.bias, s.alpha[0], SIDE);
    forward_pooled(s, s.large[A1], s.small[A2], 0, s.bias + C, s.alpha[1]);
    forward(s, s.small[A2], s.small[A3], s.sign3, 2, s.bias + 2 * C, s.alpha[2], HALF);
    forward(s, s.small[A3], s.small[A4], s.sign4, 4, s.bias + 3 * C, s.alpha[3], HALF);
    narrow(s, s.small[A4], 2, HALF, [&](int pixel, int place, float h) {
        h += s.bias[4 * C];
        s.sign5[pixel] = h > 0.0f;
        s.inner[A5][place] = prelu(h, s.alpha[4]);
    });
    SYNC();
    from_rows(s, w.dense(0), s.inner[A5], 1.0f, [&](int j, float h) {
        h += w.bias_hidden(0)[j];
        s.hidden_e[j] = h;
        s.vector[j] = prelu(h, s.alpha[5]);
    });
    to_latent(s, w.thin(0), w.bias_latent(), s.latent);
    float square = 0.0f;
    for (int i = 0; i < ZP; i++) square += s.latent[i] * s.latent[i];
    return SPHERE ? 1.0f / larger(sqrtf(square), 1e-30f) : 1.0f;
}

// From `factor` times z: the output to plane 0 (FIRST); or s.residual, and v to plane 1. The sum of squared residuals and
// the largest abs(v) are returned.
template <bool FIRST>
DEVICE void decode(Shared& s, const Weights& w, const float* z, float factor, float& squares, float& largest) {
    int j = TID;
    if (j < HP) {
        float h = 0.0f;
        for (int i = 0; i < ZP; i++) h += w.thin(1)[i * HP + j] * z[i];
        h = h * factor + w.bias_hidden(1)[j];
        s.hidden_d[FIRST][j] = h;
        put_split(s, j, prelu(h, s.alpha[6]));
    }
    SYNC();
    to_rows(s, w.dense(1), [&](int pixel, float h) {
        h += w.bias_small()[pixel];
        s.sign9[FIRST][pixel] = h > 0.0f;
        s.inner[A9][place_of(pixel, HALF)] = prelu(h, s.alpha[7]);
    });
    SYNC();
    widen(s.inner[A9], s.small[A6], s.sign6[FIRST], s.single[2], s.bias + 5 * C, s.alpha[8], HALF);
    forward(s, s.small[A6], s.small[A7], s.sign7[FIRST], 6, s.bias + 6 * C, s.alpha[9], HALF);
    spread(s.small[A7], s.large[U]);
    forward(s, s.large[U], s.large[A8], s.sign8[FIRST], 8, s.bias + 7 * C, s.alpha[10], SIDE);
    float total = 0.0f, most = 0.0f;
    narrow(s, s.large[A8], 6, SIDE, [&](int pixel, int place, float out) {
        out += s.bias[8 * C];
        if (SIGMOID) out = 1.0f / (1.0f + expf(-out));
        if (FIRST) {
            s.plane[0][place] = out;
        } else {
            float residual = s.plane[0][place] - out, v = residual * derivative_of(out);
            total += residual * residual;
            most = larger(most, fabsf(v));
            if (!GRADIENT) s.residual[pixel] = residual;
            s.plane[1][place] = v;
        }
    });
    if (FIRST) SYNC();
    else block_reduce<true, true>(s, total, most), squares = total, largest = most;
}

// Pull plane 1 back through the decoder, to v at z in s.pulled. Halves hold `scale` times the vectors, which are of order
// one. Behind it s.vector is v at the hidden vector's input, and inner plane V that at the decoder's small plane.
template <bool FIRST> DEVICE void decode_back(Shared& s, const Weights& w, float largest, Gather* to) {
    float scale = 16.0f / larger(largest, 1e-30f), slope[5] = {}, f = 0.0f;
    if (GRADIENT) {
        f = to->factor / scale;
        weight_gradient_plane<true>(s, s.plane[1], scale, s.large[A8], f, to->single(3), to->bias(8), SIDE);
    }
    slope[4] = widen_back(s.plane[1], scale, s.large[G8], s.sign8[FIRST], s.single[3], s.alpha[10], SIDE);
    if (GRADIENT) weight_gradient(s, s.large[U], s.large[G8], f, to->mixing(4), to->bias(7), SIDE);
    back(s, s.large[G8], s.large[GU], 0, 0, 9, 1.0f, SIDE);
    slope[3] = spread_back(s.large[GU], s.small[G7], s.sign7[FIRST], s.small[A7], s.alpha[9]);
    if (GRADIENT) weight_gradient(s, s.small[A6], s.small[G7], f, to->mixing(3), to->bias(6), HALF);
    slope[2] = back(s, s.small[G7], s.small[G6], s.sign6[FIRST], s.small[A6], 7, s.alpha[8], HALF);
    if (GRADIENT) weight_gradient_plane<false>(s, s.inner[A9], 1.0f, s.small[G6], f, to->single(2), to->bias(5), HALF);
    float inverse = 1.0f / scale;
    narrow(s, s.small[G6], 5, HALF, [&](int pixel, int place, float pulled) {
        pulled *= inverse;
        bool positive = s.sign9[FIRST][pixel];
        if (GRADIENT) slope[1] += pulled * negative_part(s.inner[A9][place], positive, s.alpha[7]);
        s.inner[V][place] = pulled * (positive ? 1.0f : s.alpha[7]);
    });
    SYNC();
    from_rows(s, w.dense(1), s.inner[V], scale, [&](int j, float pulled) {
        float h = s.hidden_d[FIRST][j];
        if (GRADIENT) slope[0] += pulled * (h > 0.0f ? 0.0f : h);
        s.vector[j] = pulled * (h > 0.0f ? 1.0f : s.alpha[6]);
    });
    to_latent(s, w.thin(1), 0, s.pulled);
    if (GRADIENT)
        for (int k = 0; k < 5; k++) to->slopes[6 + k] += slope[k] * (k < 2 ? to->factor : f);
}

// v before the projection to the sphere is s.pulled less this times s.latent, times the encoder's factor.
DEVICE float along_latent(const Shared& s, float factor) {
    float along = 0.0f;
    for (int i = 0; SPHERE && i < ZP; i++) along += s.latent[i] * s.pulled[i];
    return along * factor * factor;
}

// Pull v at z (s.pulled) back to the first convolution's output, map G1; the scale that it has there. `factor` is the
// encoder's. Behind it s.vector (GRADIENT) is v at the hidden vector's input.
DEVICE float encode_back(Shared& s, const Weights& w, float factor, Gather* to) {
    float slope[6] = {}, along = along_latent(s, factor), square = 0.0f;
    for (int i = 0; i < ZP; i++) square += (s.pulled[i] - along * s.latent[i]) * (s.pulled[i] - along * s.latent[i]);
    float size = larger(factor * sqrtf(square), 1e-30f);
    int j = TID;
    if (j < HP) {
        float pulled = 0.0f, h = s.hidden_e[j];
        for (int i = 0; i < ZP; i++) pulled += w.thin(0)[i * HP + j] * (s.pulled[i] - along * s.latent[i]);
        pulled *= factor;
        if (GRADIENT) slope[5] += pulled * (h > 0.0f ? 0.0f : h);
        pulled *= h > 0.0f ? 1.0f : s.alpha[5];
        if (GRADIENT) s.vector[j] = pulled;
        put_split(s, j, pulled / size);
    }
    SYNC();
    float most = 0.0f;
    to_rows(s, w.dense(0), [&](int pixel, float row) {
        row *= size;
        int place = place_of(pixel, HALF);
        bool positive = s.sign5[pixel];
        if (GRADIENT) slope[4] += row * negative_part(s.inner[A5][place], positive, s.alpha[4]);
        row *= positive ? 1.0f : s.alpha[4];
        most = larger(most, fabsf(row));
        s.inner[V][place] = row;
    });
    float scale = 16.0f / larger(block_most(s, most), 1e-30f), f = 1.0f / scale;
    if (GRADIENT) weight_gradient_plane<true>(s, s.inner[V], scale, s.small[A4], f, to->single(1), to->bias(4), HALF);
    slope[3] = widen_back(s.inner[V], scale, s.small[G4], s.sign4, s.single[1], s.alpha[3], HALF);
    if (GRADIENT) weight_gradient(s, s.small[A3], s.small[G4], f, to->mixing(2), to->bias(3), HALF);
    slope[2] = back(s, s.small[G4], s.small[G3], s.sign3, s.small[A3], 5, s.alpha[2], HALF);
    if (GRADIENT) weight_gradient(s, s.small[A2], s.small[G3], f, to->mixing(1), to->bias(2), HALF);
    slope[1] = back<true>(s, s.small[G3], s.large[G2], s.sign2, s.small[A2], 3, s.alpha[1], HALF);
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
    for (int k = TID; k < 5 * 9 * 32; k += THREADS) {
        int conv = k / 288, tap = k / 32 % 9, lane = k % 32;
        const u16* at = w.half + conv * 9 * C * C + (tap * C + 2 * (lane % 4)) * C + lane / 4;
        s.frag[conv][tap][lane] = (u32)at[0] | ((u32)at[C] << 16);
    }
    for (int k = TID; k < 4 * 9 * C; k += THREADS) {
        int conv = k / (9 * C), tap = k / C % 9;
        float weight = w.full[45 * C * C + k];
        s.single[conv][k % (9 * C)] = weight;
        s.fine[conv][tap][0][k % C] = as_half(weight);
        s.fine[conv][tap][1][k % C] = as_half(weight - as_float(as_half(weight)));
    }
    const float* bias = w.thin(2);
    for (int k = TID; k < 9 * C + 16; k += THREADS) (k < 9 * C ? s.bias[k] : s.alpha[k - 9 * C]) = bias[k];
    SYNC();
}

#ifndef EMULATE
extern "C" __device__ const int shared_bytes = sizeof(Shared);
#endif
