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
    for (;;) emulated::yield();
}

static void run_block() {
    using namespace emulated;
    memset(shared, 0x7b, sizeof(Shared));  // not a number, and no zero
    for (int k = 0; k < COUNT; k++) {
        done[k] = false;
        getcontext(&fibers[k]);
        fibers[k].uc_stack.ss_sp = stacks + (size_t)k * STACK;
        fibers[k].uc_stack.ss_size = STACK;
        fibers[k].uc_link = &scheduler;
        makecontext(&fibers[k], fiber, 0);
    }
    for (bool left = true; left;) {
        left = false;
        for (thread = 0; thread < COUNT; thread++)
            if (!done[thread]) {
                left = true;
                swapcontext(&scheduler, &fibers[thread]);
            }
    }
}

extern "C" int emulate(void** arguments, int blocks, int members) {
    using namespace emulated;
    given = arguments;
    blocks_x = blocks, blocks_y = members;
    shared = (Shared*)aligned_alloc(16, (sizeof(Shared) + 15) / 16 * 16);
    stacks = (char*)malloc((size_t)COUNT * STACK);
    for (block_y = 0; block_y < members; block_y++)
        for (block_x = 0; block_x < blocks; block_x++) run_block();
    free(stacks);
    free(shared);
    return (int)sizeof(Shared);
}
