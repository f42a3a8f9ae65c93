// One block of the kernel on a CPU: its threads are fibers that take turns at barriers and shuffles.
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>

#define DEVICE inline
#define KERNEL static void
#define SYNC() emulated::barrier()
#define TID (emulated::thread)
#define BLOCK_X (emulated::block_x)
#define BLOCK_Y (emulated::block_y)
#define BLOCKS_X (emulated::blocks_x)
#define BLOCKS_Y (emulated::blocks_y)
#define SHARED (*emulated::shared)

namespace emulated {
const int COUNT = 512, STACK = 1 << 16;
int thread, block_x, block_y, blocks_x, blocks_y;
Shared* shared;
ucontext_t fibers[COUNT];
jmp_buf scheduler, places[COUNT];
const int* awaited[COUNT];
int seen[COUNT];
bool begun[COUNT], done[COUNT], waits[COUNT / 32];
int order, turns[COUNT];
uint32_t drawn;
char* stacks;
int arrived, generation, warp_arrived[COUNT / 32], warp_generation[COUNT / 32];
uint32_t slots[2][COUNT], registers[COUNT][6];
uintptr_t rows[COUNT];

uint32_t draw() { return (drawn = drawn * 1664525u + 1013904223u) >> 16; }
// Fibers start as contexts and go on by jumps, which need no system call.
void wait_for_change(const int* counter, int value) {
    if (*counter != value) return;
    awaited[thread] = counter, seen[thread] = value;
    if (_setjmp(places[thread]) == 0) _longjmp(scheduler, 1);
}
bool may_go() { return !awaited[thread] || *awaited[thread] != seen[thread]; }
void resume() {
    if (_setjmp(scheduler)) return;
    if (begun[thread]) _longjmp(places[thread], 1);
    begun[thread] = true;
    setcontext(&fibers[thread]);
}
void barrier() {
    int mine = generation;
    if (++arrived == COUNT) arrived = 0, generation++;
    wait_for_change(&generation, mine);
}
uint32_t exchange(uint32_t value, int mask) {
    int warp = thread / 32, mine = warp_generation[warp], me = thread;
    slots[mine & 1][me] = value;
    if (++warp_arrived[warp] == 32) warp_arrived[warp] = 0, warp_generation[warp]++;
    wait_for_change(&warp_generation[warp], mine);
    return slots[mine & 1][me ^ mask];
}
}  // namespace emulated

struct Halves {  // a table: the conversion is a call where the processor has none
    float value[1 << 16];
    Halves() {
        for (int k = 0; k < 1 << 16; k++) {
            u16 h = (u16)k;
            _Float16 x;
            std::memcpy(&x, &h, 2);
            value[k] = (float)x;
        }
    }
};
static const Halves all_halves;
inline float as_float(u16 h) { return all_halves.value[h]; }
inline u16 as_half(float f) {
    _Float16 x = (_Float16)f;
    u16 h;
    std::memcpy(&h, &x, 2);
    return h;
}
inline u32 both(float a, float b) { return (u32)as_half(a) | ((u32)as_half(b) << 16); }
inline void halves(u32 two, float& a, float& b) { a = as_float((u16)two), b = as_float((u16)(two >> 16)); }
template <int OFFSET> inline Octet fetch(const u16* at) {
    Octet o;
    std::memcpy(&o, at + OFFSET, sizeof o);
    return o;
}
inline u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | (b << 16); }
inline u32 high_halves(u32 a, u32 b) { return (a >> 16) | (b & 0xffff0000u); }
inline u32 shuffle(u32 v, int mask) { return emulated::exchange(v, mask); }
inline float shuffle(float v, int mask) {
    u32 bits;
    std::memcpy(&bits, &v, 4);
    bits = emulated::exchange(bits, mask);
    std::memcpy(&v, &bits, 4);
    return v;
}
// Matrices of 8x8 halves, and products of the tensor cores, with numbers where `ldmatrix` and `mma` have them.
typedef uintptr_t Address;
inline Address address_of(const void* at) { return (Address)at; }
template <int COUNT, bool TURNED> void load_matrices(u32* r, Address at) {
    using namespace emulated;
    int warp = thread / 32 * 32, g = thread % 32 / 4, q = thread % 4;
    rows[thread] = at;
    exchange(0, 0);
    for (int m = 0; m < COUNT; m++) {
        const Address* row = rows + warp + 8 * m;
        if (TURNED) r[m] = ((u16*)row[2 * q])[g] | (u32)((u16*)row[2 * q + 1])[g] << 16;
        else r[m] = ((u32*)row[g])[q];
    }
    exchange(0, 0);
}
inline void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
    using namespace emulated;
    int warp = thread / 32 * 32, lane = thread % 32;
    const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    std::memcpy(registers[thread], mine, sizeof mine);
    exchange(0, 0);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2, far = k / 8, at = k % 8 / 2;
            u32 left = registers[warp + row % 8 * 4 + at][2 * far + row / 8];
            u32 right = registers[warp + column * 4 + at][4 + far];
            c[i] += as_float((u16)(left >> 16 * (k % 2))) * as_float((u16)(right >> 16 * (k % 2)));
        }
    exchange(0, 0);
}
inline void multiply_short(float c[4], const u32 a[2], u32 b) {
    u32 wide[4] = {a[0], a[1], 0, 0};
    multiply(c, wide, b, 0);
}
inline float cospif(float x) { return std::cos(3.14159265358979323846f * x); }
inline u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
