#include "test/host_cuda/block.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "test/host_cuda/banks.hpp"
#include "test/host_cuda/fiber.hpp"
#include "test/host_cuda/hopper.hpp"

namespace host_cuda {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr unsigned kWarp = 32;

enum class Waits : std::uint8_t { nothing, block, warp, condition, earlier };

// Operations of a warp, distinguished by the addresses of their names.
constexpr char kBarrier[] = "__syncwarp", kShuffle[] = "a warp shuffle or vote",
               kMatrix[] = "a warp matrix operation";

struct alignas(64) Slots {
  std::byte inputs[kWarp * kExchangeBytes];
  std::byte outputs[kWarp * kExchangeBytes];
  unsigned readers = 0;  // lanes that have not reached their next operation
};

// State that a thread's warp and the scheduler read again and again: one cache line.
struct alignas(64) Thread {
  Index3 index;
  std::uint32_t mask = 0;
  std::unique_ptr<Fiber> fiber;
  const char* operation = "";
  Where where;
  Slots* result = nullptr;  // of its last exchange
  std::uint32_t open_group = 0, committed = 0;
  Waits waits = Waits::nothing;
  bool followed = false;  // has waited for earlier kernels
  // ThreadSanitizer: the events that this thread may see when it continues. Each thread has its own
  // address: through a common one a slow thread would also see the work of a fast one after the
  // barrier.
  char resumed = 0;
};
static_assert(sizeof(Thread) == 64);

struct Copies {
  std::deque<QueuedCopy> copies;
  std::deque<std::uint32_t> groups;  // sizes of committed groups, oldest first
};

struct Warp {
  std::byte arriving[kWarp * kExchangeBytes];
  std::vector<std::unique_ptr<Slots>> results;
  char arrivals = 0;  // ThreadSanitizer: the lanes' work before they arrived
};

struct Static {
  const void* key;
  std::size_t bytes;
  std::unique_ptr<std::byte[]> memory;
  std::byte* aligned;
};

struct Scheduler {
  Grid grid;
  Index3 block;
  std::vector<Thread> threads;
  std::vector<Copies> copies;                            // of each thread
  std::vector<const std::function<bool()>*> conditions;  // other conditions that a thread waits for
  std::vector<Warp> warps;
  std::vector<Static> statics;
  char allocated = 0;  // its address orders their allocation for ThreadSanitizer
  std::unique_ptr<std::byte[]> dynamic_memory;
  std::byte* dynamic = nullptr;
  unsigned count = 0, live = 0, current = 0, at_barrier = 0;
  Home home;
  std::vector<unsigned> order;  // of threads: one pass over those that can continue
  std::size_t position = 0;     // in it
  bool running = false;
  bool early = false;  // earlier kernels have not run
  bool lets_next = false;
  std::function<void()> body;             // of a thread, with what comes after it
  char earlier = 0;                       // ThreadSanitizer: the work of earlier kernels
  char begin = 0, arrivals = 0, end = 0;  // ThreadSanitizer: order of blocks and barriers
  std::uint64_t seed = 0, state = 0;
};

thread_local Scheduler* chosen_scheduler = nullptr;

Scheduler& the() {
  static thread_local Scheduler scheduler;
  return chosen_scheduler ? *chosen_scheduler : scheduler;
}

std::uint64_t draw(Scheduler& s) {  // splitmix64
  std::uint64_t z = (s.state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

void shuffle(Scheduler& s, std::vector<unsigned>& order) {
  if (s.seed == 0) return;
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw(s) % i]);
}

Thread& self() {
  Scheduler& s = the();
  if (!s.running) defect("device code called outside a kernel");
  return s.threads[s.current];
}

Copies& own_copies() {
  Scheduler& s = the();
  if (!s.running) defect("device code called outside a kernel");
  return s.copies[s.current];
}

std::byte* aligned_block(std::unique_ptr<std::byte[]>& memory, std::size_t bytes,
                         std::size_t alignment = 128) {
  // The end of the block is the end of the allocation, so that an overrun is detected.
  memory.reset(new std::byte[bytes + alignment]);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
  return memory.get() + (alignment - address % alignment) % alignment;
}

/// Writes are volatile, so that the compiler does not emit a call of memset, which ThreadSanitizer
/// would count as an access of the running thread.
void poison(void* memory, std::size_t bytes) {
  auto* byte = static_cast<volatile unsigned char*>(memory);
  std::size_t i = 0;
  for (; i + 8 <= bytes && reinterpret_cast<std::uintptr_t>(byte) % 8 == 0; i += 8)
    *reinterpret_cast<volatile std::uint64_t*>(byte + i) = ~std::uint64_t{0};
  for (; i < bytes; ++i) byte[i] = 0xFF;
}

std::string describe_waiting(Scheduler& s) {
  std::string text;
  for (unsigned i = 0; i < s.count; ++i) {
    const Thread& t = s.threads[i];
    if (t.fiber->finished() || t.waits == Waits::nothing) continue;
    const bool same = i > 0 && s.threads[i - 1].waits == t.waits &&
                      s.threads[i - 1].where.line() == t.where.line();
    if (same && i + 1 < s.count) continue;
    char line[256];
    std::snprintf(line, sizeof line, "\n  thread %u waits in %s at %s:%u", i, t.operation,
                  t.where.file_name(), t.where.line());
    text += line;
    if (text.size() > 3000) return text + "\n  ...";
  }
  return text;
}

/// The running thread waits, and the next of this pass continues: the switch is direct, because
/// lanes that meet do nothing else. If there is no next thread, or its condition must be checked,
/// the scheduler runs.
void give_way(Scheduler& s) {
  Thread& me = s.threads[s.current];
  while (++s.position < s.count) {
    const unsigned i = s.order[s.position];
    Thread& next = s.threads[i];
    if (next.waits == Waits::condition) {
      --s.position;
      break;
    }
    if (next.waits != Waits::nothing || next.fiber->finished()) continue;
    s.current = i;
    return me.fiber->give_way_to(*next.fiber);
  }
  me.fiber->yield();
}

void wait(Waits what) {
  self().waits = what;
  give_way(the());
}

bool lane_ready(Scheduler& s, unsigned first, unsigned l, const Thread& like) {
  if (first + l >= s.count) return true;
  const Thread& t = s.threads[first + l];
  if (t.waits == Waits::warp) return t.mask == like.mask && t.operation == like.operation;
  return t.fiber->finished();
}

/// Arrives at a warp operation; the last lane of the mask runs `last` and releases the others.
template <class Last>
void meet(std::uint32_t mask, const char* operation, Where where, const Last& last) {
  Scheduler& s = the();
  Thread& me = self();
  const unsigned first = s.current / kWarp * kWarp, mine = s.current % kWarp;
  if (!(mask >> mine & 1))
    defect("lane %u calls %s with mask %08x, which does not name it (%s:%u)", mine, operation, mask,
           where.file_name(), where.line());
  if (me.result) --me.result->readers, me.result = nullptr;
  me.mask = mask, me.operation = operation, me.where = where;
  me.waits = Waits::warp;
  Warp& warp = s.warps[s.current / kWarp];
  tsan_release(&warp.arrivals);
  bool complete = true;  // the lanes after this one have most likely not arrived yet
  for (unsigned i = 1; i < kWarp && complete; ++i) {
    const unsigned l = (mine + i) % kWarp;
    if (mask >> l & 1) complete = lane_ready(s, first, l, me);
  }
  if (complete) {
    tsan_acquire(&warp.arrivals);
    last(warp, first);
    for (unsigned l = 0; l < kWarp && first + l < s.count; ++l)
      if (mask >> l & 1) {
        s.threads[first + l].waits = Waits::nothing;
        tsan_release(&s.threads[first + l].resumed);
      }
  } else {
    give_way(s);
  }
  tsan_acquire(&me.resumed);
}

Slots& unused_slots(Warp& warp) {
  for (const auto& slots : warp.results)
    if (slots->readers == 0) return *slots;
  warp.results.push_back(std::make_unique<Slots>());
  return *warp.results.back();
}

/// All lanes of the mask get one copy of the values of all.
Slots& hand_out(Scheduler& s, Warp& warp, unsigned first, std::uint32_t mask) {
  Slots& slots = unused_slots(warp);
  std::memcpy(slots.inputs, warp.arriving, sizeof slots.inputs);
  for (unsigned l = 0; l < kWarp && first + l < s.count; ++l) {
    Thread& t = s.threads[first + l];
    if (!(mask >> l & 1) || t.fiber->finished()) continue;
    t.result = &slots;
    ++slots.readers;
  }
  return slots;
}

void prepare(Scheduler& s, const Grid& grid) {
  s.grid = grid;
  s.count = grid.threads.x * grid.threads.y * grid.threads.z;
  if (s.count == 0 || s.count > kMaxThreads)
    defect("%s launched with %u threads a block", grid.kernel, s.count);
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0 || grid.blocks.y > 65535 ||
      grid.blocks.z > 65535)
    defect("%s launched with %u x %u x %u blocks", grid.kernel, grid.blocks.x, grid.blocks.y,
           grid.blocks.z);
  if (grid.shared_bytes > hopper::most_shared_bytes())
    defect("%s launched with %zu bytes of shared memory", grid.kernel, grid.shared_bytes);
  if (s.threads.size() < s.count) s.threads.resize(s.count), s.copies.resize(s.count);
  s.conditions.assign(s.count, nullptr);
  for (unsigned i = 0; i < s.count; ++i) {
    Thread& t = s.threads[i];
    if (!t.fiber) t.fiber = std::make_unique<Fiber>(s.home, kStackBytes);
    t.index = {i % grid.threads.x, i / grid.threads.x % grid.threads.y,
               i / (grid.threads.x * grid.threads.y)};
  }
  s.warps.resize((s.count + kWarp - 1) / kWarp);
  s.statics.clear();
  s.dynamic = aligned_block(s.dynamic_memory, grid.shared_bytes, hopper::shared_alignment());
}

void start_block(Scheduler& s, const std::function<void()>& body) {
  poison(s.dynamic, s.grid.shared_bytes);
  for (Static& array : s.statics) poison(array.aligned, array.bytes);
  s.live = s.count, s.at_barrier = 0;
  for (Warp& warp : s.warps)
    for (const auto& slots : warp.results) slots->readers = 0;
  tsan_release(&s.begin);
  s.body = [&s, &body] {
    tsan_acquire(&s.begin);
    body();
    if (s.grid.follows && !self().followed)
      defect("%s: a thread ends without waiting for earlier kernels", s.grid.kernel);
    if (!own_copies().copies.empty())
      defect("%s ends with cp.async copies nobody waited for", s.grid.kernel);
    hopper::end_thread(s.grid.kernel);
    tsan_release(&s.end);
  };
  for (unsigned i = 0; i < s.count; ++i) {
    Thread& t = s.threads[i];
    t.waits = Waits::nothing, t.result = nullptr, t.open_group = t.committed = 0;
    t.followed = false;
    s.copies[i].copies.clear(), s.copies[i].groups.clear();
    t.fiber->start(s.body);
  }
}

/// Runs the threads of a block to their ends or, if earlier kernels have not run, until none can
/// continue without them.
void run_threads(Scheduler& s) {
  while (s.live > 0) {
    bool progress = false;
    for (s.position = 0; s.position < s.count; ++s.position) {
      const unsigned i = s.order[s.position];
      Thread& t = s.threads[i];
      if (t.waits == Waits::condition && (*s.conditions[i])()) t.waits = Waits::nothing;
      if (t.fiber->finished() || t.waits != Waits::nothing) continue;
      progress = true;
      s.current = i;
      t.fiber->resume();
      if (s.threads[s.current].fiber->finished()) --s.live;
    }
    // Exited threads no longer count at a barrier.
    if (s.live > 0 && s.at_barrier == s.live) {
      s.at_barrier = 0;
      tsan_acquire(&s.arrivals);
      for (unsigned i = 0; i < s.count; ++i) {
        if (s.threads[i].waits != Waits::block) continue;
        s.threads[i].waits = Waits::nothing;
        tsan_release(&s.threads[i].resumed);
      }
      progress = true;
    }
    if (!progress && s.early) return;
    if (!progress && !hopper::deliver(s.seed == 0 ? 0 : draw(s)))
      defect("DEADLOCK in %s, block (%u, %u, %u): no thread can go on%s", s.grid.kernel, s.block.x,
             s.block.y, s.block.z, describe_waiting(s).c_str());
  }
}

void end_block(Scheduler& s) {
  settle_copies(s.grid.kernel);
  hopper::end_block(s.grid.kernel);
  tsan_acquire(&s.end);
}

Index3 block_of(const Grid& grid, unsigned b) {
  return {b % grid.blocks.x, b / grid.blocks.x % grid.blocks.y,
          b / (grid.blocks.x * grid.blocks.y)};
}

void order_threads(Scheduler& s) {
  s.order.resize(s.count);
  std::iota(s.order.begin(), s.order.end(), 0u);
  shuffle(s, s.order);
}

/// Schedulers of blocks that begin early, with their stacks, for the next use.
std::vector<std::unique_ptr<Scheduler>>& unused_schedulers() {
  static thread_local std::vector<std::unique_ptr<Scheduler>> unused;
  return unused;
}

}  // namespace

struct EarlyBlock {
  std::unique_ptr<Scheduler> scheduler;
  std::function<void()> body;
  unsigned block = 0;
};

void defect(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fputs("host_cuda: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::fflush(stderr);
  std::_Exit(70);
}

void set_seed(std::uint64_t seed) {
  the().seed = the().state = seed;
}

namespace {

/// Numbers of the launches of each kernel, appended to the file HOST_CUDA_KERNELS at the end, for
/// tests of which kernels a program uses.
struct Launches {
  std::map<std::string, std::uint64_t> of;
  std::map<std::string, bool> lets_next;
  ~Launches() {
    const char* path = std::getenv("HOST_CUDA_KERNELS");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
    if (file == nullptr) return;
    for (const auto& [name, count] : of)
      std::fprintf(file, "%llu %s\n", static_cast<unsigned long long>(count), name.c_str());
    std::fclose(file);
  }
};

Launches& launches() {
  static Launches launches;
  return launches;
}

}  // namespace

bool lets_next_begin(const char* kernel) {
  const auto found = launches().lets_next.find(kernel);
  return found != launches().lets_next.end() && found->second;
}

// Only one block, because the threads of all would need a stack each.
std::shared_ptr<EarlyBlock> begin_early(const Grid& grid, const std::function<void()>& body) {
  auto early = std::make_shared<EarlyBlock>();
  std::vector<std::unique_ptr<Scheduler>>& unused = unused_schedulers();
  if (unused.empty()) unused.push_back(std::make_unique<Scheduler>());
  early->scheduler = std::move(unused.back());
  unused.pop_back();
  early->body = body;
  Scheduler &usual = the(), &s = *early->scheduler;
  s.seed = s.state = usual.seed == 0 ? 0 : draw(usual);
  const unsigned blocks = grid.blocks.x * grid.blocks.y * grid.blocks.z;
  early->block = usual.seed == 0 ? 0 : static_cast<unsigned>(draw(usual) % blocks);
  chosen_scheduler = &s;
  prepare(s, grid);
  s.block = block_of(grid, early->block);
  s.running = s.early = true;
  order_threads(s);
  start_block(s, early->body);
  run_threads(s);
  s.early = false;
  chosen_scheduler = nullptr;
  return early;
}

namespace {

void continue_early(EarlyBlock& early) {
  Scheduler& s = *early.scheduler;
  chosen_scheduler = &s;
  tsan_release(&s.earlier);
  for (unsigned i = 0; i < s.count; ++i)
    if (s.threads[i].waits == Waits::earlier) s.threads[i].waits = Waits::nothing;
  hopper::begin_block(s.count);
  run_threads(s);
  end_block(s);
  s.running = false;
  chosen_scheduler = nullptr;
  unused_schedulers().push_back(std::move(early.scheduler));
}

}  // namespace

void run(const Grid& grid, const std::function<void()>& body,
         const std::shared_ptr<EarlyBlock>& early) {
  ++launches().of[grid.kernel];
  Scheduler& s = the();
  if (s.running) defect("%s launched from inside a kernel", grid.kernel);
  prepare(s, grid);
  s.running = true;
  s.lets_next = false;
  std::vector<unsigned> blocks(std::size_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z);
  std::iota(blocks.begin(), blocks.end(), 0u);
  shuffle(s, blocks);
  for (const unsigned b : blocks) {
    if (early && b == early->block) {
      continue_early(*early);
      continue;
    }
    s.block = block_of(grid, b);
    order_threads(s);
    start_block(s, body);
    hopper::begin_block(s.count);
    run_threads(s);
    end_block(s);
  }
  s.running = false;
  if (s.lets_next) launches().lets_next[grid.kernel] = true;
}

const Index3& thread_index() {
  return self().index;
}
const Index3& block_index() {
  return the().block;
}
const Index3& block_extent() {
  return the().grid.threads;
}
const Index3& grid_extent() {
  return the().grid.blocks;
}
unsigned lane() {
  return the().current % kWarp;
}
void* dynamic_shared() {
  return the().dynamic;
}

std::size_t dynamic_bytes() {
  return the().grid.shared_bytes;
}

void wait_until(const std::function<bool()>& holds, const char* operation, Where where) {
  if (holds()) return;
  Scheduler& s = the();
  Thread& me = self();
  me.operation = operation, me.where = where;
  s.conditions[s.current] = &holds;
  wait(Waits::condition);
}

void* static_shared(const void* key, std::size_t bytes) {
  Scheduler& s = the();
  // An array belongs to the block, not to the thread that happens to request it first: its
  // allocation, which ThreadSanitizer counts as a write, is ordered before all uses.
  tsan_acquire(&s.allocated);
  for (Static& array : s.statics)
    if (array.key == key) return array.aligned;
  Static array{key, bytes, nullptr, nullptr};
  array.aligned = aligned_block(array.memory, bytes);
  poison(array.aligned, bytes);
  s.statics.push_back(std::move(array));
  std::size_t all = s.grid.shared_bytes;
  for (const Static& other : s.statics) all += other.bytes;
  if (all > kMaxSharedBytes) defect("%s needs %zu bytes of shared memory", s.grid.kernel, all);
  tsan_release(&s.allocated);
  return s.statics.back().aligned;
}

void let_next_begin() {
  the().lets_next = true;
}

void wait_for_earlier() {
  Scheduler& s = the();
  Thread& me = self();
  me.followed = true;
  if (!s.early) return;
  me.operation = "a wait for earlier kernels";
  wait(Waits::earlier);
  tsan_acquire(&s.earlier);
}

void synchronize_block(Where where) {
  Scheduler& s = the();
  Thread& me = self();
  me.operation = "__syncthreads", me.where = where;
  tsan_release(&s.arrivals);
  ++s.at_barrier;
  wait(Waits::block);
  tsan_acquire(&me.resumed);
}

void synchronize_warp(std::uint32_t mask, Where where) {
  meet(mask, kBarrier, where, [](Warp&, unsigned) {});
}

const std::byte* exchange(std::uint32_t mask, const void* value, std::size_t bytes, Where where) {
  Scheduler& s = the();
  std::memcpy(s.warps[s.current / kWarp].arriving + lane() * kExchangeBytes, value, bytes);
  meet(mask, kShuffle, where, [&](Warp& warp, unsigned first) { hand_out(s, warp, first, mask); });
  return self().result->inputs;
}

const std::byte* combine(std::uint32_t mask, const void* value, std::size_t bytes, Combine combine,
                         Where where) {
  Scheduler& s = the();
  std::memcpy(s.warps[s.current / kWarp].arriving + lane() * kExchangeBytes, value, bytes);
  meet(mask, kMatrix, where, [&](Warp& warp, unsigned first) {
    Slots& slots = hand_out(s, warp, first, mask);
    combine(slots.inputs, slots.outputs);
  });
  return self().result->outputs + lane() * kExchangeBytes;
}

void load_matrices(const void* const rows[kWarp]) {
  note_matrices(the().grid.kernel, rows);
}

void queue_copy(const QueuedCopy& copy) {
  own_copies().copies.push_back(copy);
  Thread& me = self();
  note_copy(the().current, me.committed, me.open_group, copy.to);
  ++me.open_group;
}

void commit_copies() {
  Thread& me = self();
  own_copies().groups.push_back(me.open_group);
  me.open_group = 0;
  ++me.committed;
}

bool next_copy(unsigned pending, QueuedCopy& copy) {
  Copies& mine = own_copies();
  while (mine.groups.size() > pending && mine.groups.front() == 0) mine.groups.pop_front();
  if (mine.groups.size() <= pending) return false;
  --mine.groups.front();
  copy = mine.copies.front();
  mine.copies.pop_front();
  return true;
}

}  // namespace host_cuda
