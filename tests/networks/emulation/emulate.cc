// Runs all blocks of the kernel, one after the other, with the arguments of a launch.
#include <conv_network.cu>
#if GRADIENT
#include <conv_gradient.cu>
#else
#include <conv_chain.cu>
#endif

static void** given;
template <class T> static T at(int k) { return *(T*)given[k]; }

static void fiber() {
#if GRADIENT
    gradient(at<const float*>(0), at<const float*>(1), at<const float*>(2), at<float*>(3), at<float*>(4), at<const u16*>(5),
             at<const float*>(6), at<int>(7), at<int>(8), at<int>(9));
#else
    chain(at<const float*>(0), at<float*>(1), at<float*>(2), at<float*>(3), at<int*>(4), at<const long long*>(5),
          at<const float*>(6), at<const float*>(7), at<const u16*>(8), at<const float*>(9), at<int>(10), at<int>(11),
          at<int>(12), at<int>(13), at<int>(14), at<int>(15), at<float>(16), at<float>(17), at<float>(18), at<float>(19));
#endif
    emulated::done[emulated::thread] = true;
    _longjmp(emulated::scheduler, 1);
}

// Between two barriers threads may run in any order. 0: as they are numbered; 1: the last first; others are seeds: in
// another order each time, and half of the warps wait until the others can go no further, when another half is drawn.
static void take_turns(bool stuck) {
    using namespace emulated;
    for (int k = 0; k < COUNT; k++) turns[k] = order == 1 ? COUNT - 1 - k : k;
    for (int k = 0; stuck && k < COUNT / 32; k++) waits[k] = order > 1 && draw() % 2;
    for (int k = COUNT - 1; order > 1 && k > 0; k--) std::swap(turns[k], turns[draw() % (k + 1)]);
}

static void run_block() {
    using namespace emulated;
    memset(shared, 0x7b, sizeof(Shared));  // not a number, and no zero
    for (int k = 0; k < COUNT; k++) {
        begun[k] = done[k] = false, awaited[k] = nullptr;
        getcontext(&fibers[k]);
        fibers[k].uc_stack.ss_sp = stacks + (size_t)k * STACK;
        fibers[k].uc_stack.ss_size = STACK;
        makecontext(&fibers[k], fiber, 0);
    }
    for (bool left = true, stuck = true; left;) {
        left = false;
        take_turns(stuck);
        stuck = true;
        for (int k = 0; k < COUNT; k++) {
            thread = turns[k];
            if (done[thread]) continue;
            left = true;
            if (!waits[thread / 32] && may_go()) stuck = false, resume();
        }
    }
}

extern "C" int emulate(void** arguments, int blocks, int members, int chosen_order) {
    using namespace emulated;
    given = arguments;
    order = chosen_order, drawn = (uint32_t)order;
    blocks_x = blocks, blocks_y = members;
    shared = (Shared*)aligned_alloc(16, (sizeof(Shared) + 15) / 16 * 16);
    stacks = (char*)malloc((size_t)COUNT * STACK);
    for (block_y = 0; block_y < members; block_y++)
        for (block_x = 0; block_x < blocks; block_x++) run_block();
    free(stacks);
    free(shared);
    return (int)sizeof(Shared);
}
