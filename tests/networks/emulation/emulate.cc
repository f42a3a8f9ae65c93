// Runs all blocks of the kernel ENTRY of SOURCE, one after the other, with the arguments of a launch.
#include <conv_network.cu>
#include SOURCE

static void** given;
template <class... T, size_t... K> static void call(void (*kernel)(T...), std::index_sequence<K...>) {
    kernel(*(T*)given[K]...);
}
template <class... T> static void call(void (*kernel)(T...)) { call(kernel, std::index_sequence_for<T...>()); }

static void fiber() {
    call(ENTRY);
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
