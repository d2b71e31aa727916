#include "test/host_cuda/hopper.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>

#include "choir/core/dtype.hpp"
#include "test/host_cuda/fiber.hpp"

#if defined(HOST_CUDA_TSAN)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace host_cuda::hopper {
namespace {

/// Bookkeeping shared by the threads of a block: its allocations and copies are not theirs, so
/// ThreadSanitizer, which sees them even in code without instrumentation, is told to ignore them.
struct Unseen {
#if defined(HOST_CUDA_TSAN)
  Unseen() {
    AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0);
  }
#else
  Unseen() {}
#endif
};

constexpr unsigned kGroup = 128;
constexpr std::uint32_t kWindow = 1024;  // beginning of the block's shared memory

struct Barrier {
  unsigned arrivals = 0, missing = 0, phase = 0;
  std::int64_t bytes = 0;  // announced and not yet arrived
  unsigned owner = 0;      // thread that initialised it
  bool fenced = false;     // ... and made it visible to the copy engine
  char ends[2] = {};       // ThreadSanitizer: events before the end of even and odd phases
};

struct Issued {
  Product product;
  unsigned threads = 0;  // that have issued it
  unsigned done = 0;     // threads that have seen its sums
  bool computed = false;
  std::array<std::array<std::uint32_t, 4>, kGroup> a{};
  std::vector<float> sums;                               // [128][n / 2], the values of each thread
  std::array<std::shared_ptr<Issued>, kGroup> before{};  // the product whose sums it continues
  Operands operands;
  char seen = 0;  // ThreadSanitizer: its threads' work before it, and its reads
};

struct Thread {
  std::deque<std::pair<std::shared_ptr<Issued>, float*>> products;  // issued, not waited for
  std::deque<std::size_t> groups;                                   // number of products in each
  std::size_t open = 0, issued = 0;
  bool fenced = false;
};

struct Named {
  unsigned threads = 0, arrived = 0, round = 0;
  char passes[2] = {};
};

struct Block {
  std::map<const void*, Barrier> barriers;
  std::deque<Box> boxes;
  std::vector<Thread> threads;
  std::vector<std::deque<std::shared_ptr<Issued>>> groups;  // by warp group, the youngest last
  std::vector<std::size_t> first;  // number of the first product in each deque
  std::map<unsigned, Named> named;
  std::vector<std::pair<unsigned, const void*>> waiting;  // threads, and the barriers they are at
  int lander = -1;
  char engine = 0;
  std::shared_ptr<Issued> computing;
};

Block& the() {
  static thread_local Block block;
  return block;
}
thread_local int g_allowed = 0;

unsigned self() {
  const Index3 &t = thread_index(), &n = block_extent();
  return (t.z * n.y + t.y) * n.x + t.x;
}

Barrier& barrier_at(const void* address) {
  if (g_allowed == 0) defect("a barrier of sm_90 in a kernel that was not launched for it");
  const auto found = the().barriers.find(address);
  if (found == the().barriers.end())
    defect("a barrier at shared address %u that nobody has initialised", shared_address(address));
  return found->second;
}

void end_phase_if_complete(Barrier& b) {
  if (b.missing > 0 || b.bytes != 0) return;
  ++b.phase;
  b.missing = b.arrivals;
}

float from_bits(std::uint16_t bits, bool bf16) {
  if (bf16) {
    choir::bf16 x;
    x.bits = bits;
    return static_cast<float>(x);
  }
  choir::f16 x;
  x.bits = bits;
  return static_cast<float>(x);
}

std::vector<float> widened(const std::vector<std::uint16_t>& bits, bool bf16) {
  std::vector<float> all(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) all[i] = from_bits(bits[i], bf16);
  return all;
}

/// f(index of a thread's sum, row, column) for each value of a thread of the group.
template <class F>
void for_sums(unsigned thread, int n, const F& f) {
  const unsigned row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  for (unsigned i = 0; i < static_cast<unsigned>(n) / 2; ++i)
    f(i, row + i % 4 / 2 * 8, column + i / 4 * 8 + i % 2);
}

/// A [64][16] from the registers of the group, in the layout of mma.sync.m16n8k16 warp by warp.
std::vector<std::uint16_t> from_registers(const Issued& issued) {
  std::vector<std::uint16_t> a(64 * 16);
  for (unsigned t = 0; t < kGroup; ++t)
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = t / 32 * 16 + t % 32 / 4 + i % 2 * 8, k = t % 4 * 2 + i / 2 * 8;
      a[row * 16 + k] = static_cast<std::uint16_t>(issued.a[t][i]);
      a[row * 16 + k + 1] = static_cast<std::uint16_t>(issued.a[t][i] >> 16);
    }
  return a;
}

void check_descriptor(std::uint64_t d) {
  if (d >> 49 & 7)
    defect("a matrix descriptor with a base offset: its pattern does not begin at its period");
  constexpr std::uint64_t kUsed = 0xc00e3fff3fff3fffull;
  if (d & ~kUsed) defect("a matrix descriptor with bits that mean nothing: %016lx", d);
}

}  // namespace

Allowed::Allowed() {
  ++g_allowed;
}
Allowed::~Allowed() {
  --g_allowed;
}

std::size_t most_shared_bytes() {
  return g_allowed > 0 ? kMostSharedBytes : kMaxSharedBytes;
}

std::size_t shared_alignment() {
  return g_allowed > 0 ? 1024 : 128;  // the period of the widest swizzle; every block has it
}

void begin_block(unsigned threads) {
  if (g_allowed == 0) return;
  const Unseen unseen;
  Block& b = the();
  b.barriers.clear(), b.boxes.clear(), b.named.clear(), b.waiting.clear();
  b.threads.assign(threads, {});
  b.groups.assign((threads + kGroup - 1) / kGroup, {});
  b.first.assign(b.groups.size(), 0);
  b.lander = -1;
}

void end_thread(const char* kernel) {
  if (g_allowed == 0) return;
  if (!the().threads[self()].products.empty())
    defect("%s ends with products of a warp group that nobody waited for", kernel);
}

void end_block(const char* kernel) {
  if (g_allowed == 0) return;
  if (!the().boxes.empty()) defect("%s ends with boxes of the copy engine under way", kernel);
}

bool deliver(std::uint64_t drawn) {
  if (g_allowed == 0) return false;
  const Unseen unseen;
  Block& b = the();
  if (b.boxes.empty() || b.waiting.empty() || b.lander >= 0) return false;
  // The first box that a thread waits for: others are as late as possible. The thread, and which of
  // several boxes arrives first, are drawn.
  for (std::size_t i = 0; i < b.waiting.size(); ++i) {
    const auto& [thread, barrier] = b.waiting[(drawn / 64 + i) % b.waiting.size()];
    for (std::size_t k = 0; k < b.boxes.size(); ++k) {
      Box& box = b.boxes[(drawn + k) % b.boxes.size()];
      if (box.barrier != barrier) continue;
      std::swap(b.boxes.front(), box);
      b.lander = static_cast<int>(thread);
      return true;
    }
  }
  return false;
}

// --- barriers -----------------------------------------------------------------------------------

void init(void* barrier, unsigned arrivals) {
  const Unseen unseen;
  if (g_allowed == 0) defect("a barrier of sm_90 in a kernel that was not launched for it");
  if (shared_address(barrier) % 8 != 0 || arrivals == 0 || arrivals >= 1u << 20)
    defect("a barrier at shared address %u for %u arrivals", shared_address(barrier), arrivals);
  the().barriers[barrier] = {.arrivals = arrivals, .missing = arrivals, .owner = self()};
}

void arrive(void* barrier, unsigned bytes) {
  const Unseen unseen;
  Barrier& b = barrier_at(barrier);
  if (b.missing == 0) defect("more than %u arrivals in one phase of a barrier", b.arrivals);
  tsan_release(&b.ends[b.phase % 2]);
  b.bytes += bytes, --b.missing;
  end_phase_if_complete(b);
}

void fence_proxy() {
  for (auto& [address, barrier] : the().barriers)
    if (barrier.owner == self()) barrier.fenced = true;
}

bool phase_ended(void* barrier, unsigned parity, Where where, Box& box) {
  const Unseen unseen;
  Block& b = the();
  Barrier& waited = barrier_at(barrier);
  const unsigned me = self();
  const auto ended = [&] { return waited.phase % 2 != parity; };
  if (!ended()) {
    b.waiting.emplace_back(me, barrier);
    wait_until([&] { return ended() || b.lander == static_cast<int>(me); }, "mbarrier.try_wait",
               where);
    std::erase_if(b.waiting, [me](const auto& waits) { return waits.first == me; });
  }
  if (b.lander == static_cast<int>(me)) {
    b.lander = -1;
    box = b.boxes.front();
    b.boxes.pop_front();
    tsan_acquire(&b.engine);
    return false;
  }
  tsan_acquire(&waited.ends[parity]);
  return true;
}

void landed(const Box& box) {
  const Unseen unseen;
  Barrier& b = barrier_at(box.barrier);
  tsan_release(&b.ends[b.phase % 2]);
  b.bytes -= static_cast<std::int64_t>(bytes_of(box.map));
  end_phase_if_complete(b);
}

void named_barrier(unsigned id, unsigned threads, Where where) {
  const Unseen unseen;
  if (id == 0 || id > 15 || threads == 0 || threads % 32 != 0)
    defect("barrier %u for %u threads", id, threads);
  Named& barrier = the().named[id];
  if (barrier.arrived > 0 && barrier.threads != threads)
    defect("barrier %u for %u threads, of which others say %u", id, threads, barrier.threads);
  barrier.threads = threads;
  const unsigned round = barrier.round;
  tsan_release(&barrier.passes[round % 2]);
  if (++barrier.arrived == threads) barrier.arrived = 0, ++barrier.round;
  if (barrier.round == round) wait_until([&] { return barrier.round != round; }, "bar.sync", where);
  tsan_acquire(&barrier.passes[round % 2]);
}

// --- shared memory ------------------------------------------------------------------------------

std::uint32_t shared_address(const void* shared) {
  const auto* base = static_cast<const unsigned char*>(dynamic_shared());
  const std::ptrdiff_t offset = static_cast<const unsigned char*>(shared) - base;
  if (offset < 0 || static_cast<std::size_t>(offset) >= dynamic_bytes())
    defect("an address outside of the %zu bytes of dynamic shared memory", dynamic_bytes());
  return kWindow + static_cast<std::uint32_t>(offset);
}

const unsigned char* at_shared(std::uint32_t address) {
  if (address < kWindow || address - kWindow >= dynamic_bytes())
    defect("a product reads shared address %u of a block with %zu bytes from %u on", address,
           dynamic_bytes(), kWindow);
  return static_cast<const unsigned char*>(dynamic_shared()) + (address - kWindow);
}

TensorMap decode(const CUtensorMap& map) {
  static_assert(sizeof(TensorMap*) <= sizeof map.opaque);
  const std::uint64_t* o = map.opaque;
  if (o[15] != 0x636f6878) defect("a tensor map that nobody has encoded");
  TensorMap m{};
  m.data = reinterpret_cast<const unsigned char*>(o[0]);
  m.rank = 4, m.bytes = 2, m.strides[0] = 2;
  for (int i = 0; i < 4; ++i) m.dims[i] = o[1 + i], m.box[i] = static_cast<std::uint32_t>(o[8 + i]);
  for (int i = 1; i < 4; ++i) m.strides[i] = o[4 + i];
  m.swizzled = o[12] != 0;
  return m;
}

void check(const Box& box) {
  const Barrier& b = barrier_at(box.barrier);
  if (!b.fenced)
    defect("a box for a barrier that was not fenced for the copy engine after it was initialised");
  const std::size_t bytes = bytes_of(box.map);
  if (box.address % 128 != 0 || box.address - kWindow + bytes > dynamic_bytes())
    defect("a box of %zu bytes for shared address %u", bytes, box.address);
}

void issue(const Box& box) {
  const Unseen unseen;
  tsan_release(&the().engine);
  the().boxes.push_back(box);
}

// --- products ----------------------------------------------------------------------------------

void fence_products() {
  the().threads[self()].fenced = true;
}

bool issued(const Product& product, const std::uint32_t* a, float* sums) {
  const Unseen unseen;
  if (g_allowed == 0) defect("wgmma in a kernel that was not launched for sm_90");
  Block& b = the();
  const unsigned me = self(), group = me / kGroup, lane = me % kGroup;
  Thread& thread = b.threads[me];
  if (!thread.fenced)
    defect("wgmma by thread %u, whose registers were free since its last wgmma.fence", me);
  auto& youngest = b.groups[group];
  const std::size_t number = thread.issued++ - b.first[group];
  if (number == youngest.size()) {
    check_descriptor(product.b);
    if (product.a_shared) check_descriptor(product.a);
    youngest.push_back(std::make_shared<Issued>());
    youngest.back()->product = product;
    youngest.back()->sums.resize(kGroup * static_cast<std::size_t>(product.n) / 2);
  }
  const std::shared_ptr<Issued>& mine = youngest[number];
  const Product& first = mine->product;
  if (first.n != product.n || first.a != product.a || first.b != product.b ||
      first.rows_of_b != product.rows_of_b || first.a_shared != product.a_shared ||
      first.accumulate != product.accumulate)
    defect("the warps of a group issue different products (thread %u)", me);
  if (a) std::memcpy(mine->a[lane].data(), a, sizeof mine->a[lane]);
  for (const auto& [earlier, registers] : thread.products)
    if (registers == sums) mine->before[lane] = earlier;
  const std::size_t count = static_cast<std::size_t>(product.n) / 2;
  if (!mine->before[lane])
    for (std::size_t i = 0; i < count; ++i)
      mine->sums[lane * count + i] = product.accumulate ? sums[i] : 0;
  for (std::size_t i = 0; i < count; ++i) sums[i] = std::numeric_limits<float>::quiet_NaN();
  thread.products.emplace_back(mine, sums);
  ++thread.open;
  tsan_release(&mine->seen);
  if (++mine->threads < kGroup) return false;
  tsan_acquire(&mine->seen);
  b.computing = mine;
  return true;
}

void remember(Operands operands) {
  const Unseen unseen;
  the().computing->operands = std::move(operands);
}

void commit_products() {
  const Unseen unseen;
  Thread& thread = the().threads[self()];
  thread.groups.push_back(thread.open);
  thread.open = 0;
}

bool next_product(unsigned pending, Where where, Product& product) {
  const Unseen unseen;
  Block& b = the();
  const unsigned me = self(), lane = me % kGroup, group = me / kGroup;
  Thread& thread = b.threads[me];
  thread.fenced = false;
  while (thread.groups.size() > pending) {
    if (thread.groups.front() == 0) {
      thread.groups.pop_front();
      continue;
    }
    const auto [oldest, registers] = thread.products.front();
    wait_until([&] { return oldest->threads == kGroup; }, "wgmma.wait_group", where);
    if (!oldest->computed) {
      tsan_acquire(&oldest->seen);
      b.computing = oldest;
      product = oldest->product;
      return true;
    }
    tsan_acquire(&oldest->seen);
    thread.products.pop_front();
    --thread.groups.front();
    bool continued = false;  // by a product that is still in flight
    for (const auto& later : thread.products) continued = continued || later.second == registers;
    const std::size_t count = static_cast<std::size_t>(oldest->product.n) / 2;
    if (!continued)
      std::memcpy(registers, oldest->sums.data() + lane * count, count * sizeof(float));
    if (++oldest->done == kGroup) b.groups[group].pop_front(), ++b.first[group];
  }
  return false;
}

void compute(const Operands& operands) {
  const Unseen unseen;
  Issued& p = *the().computing;
  if (operands != p.operands)
    defect("shared memory that a product reads was written while it was under way");
  const int n = p.product.n;
  const auto a = widened(p.product.a_shared ? operands.a : from_registers(p), p.product.bf16);
  const auto b = widened(operands.b, p.product.bf16);
  std::vector<float> rows(static_cast<std::size_t>(64 * n));
  for (int m = 0; m < 64; ++m)
    for (int k = 0; k < 16; ++k) {
      const float left = a[static_cast<std::size_t>(m * 16 + k)];
      const float* right = b.data() + k * n;
      float* row = rows.data() + m * n;
      for (int i = 0; i < n; ++i) row[i] += left * right[i];
    }
  const std::size_t count = static_cast<std::size_t>(n) / 2;
  for (unsigned t = 0; t < kGroup; ++t) {
    float* sums = p.sums.data() + t * count;
    if (p.before[t] && p.product.accumulate)
      std::memcpy(sums, p.before[t]->sums.data() + t * count, count * sizeof(float));
    for_sums(t, n, [&](unsigned i, unsigned row, unsigned column) {
      sums[i] += rows[row * static_cast<unsigned>(n) + column];
    });
    p.before[t].reset();
  }
  p.computed = true;
  tsan_release(&p.seen);
}

}  // namespace host_cuda::hopper

// --- the driver ---------------------------------------------------------------------------------

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank != 4) return CUDA_ERROR_INVALID_VALUE;  // the functions that choir uses
  bool legal = reinterpret_cast<std::uintptr_t>(map) % 64 == 0 &&
               reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && box[0] * 2 % 16 == 0 &&
               (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || box[0] * 2 <= 128);
  for (unsigned i = 0; i < rank; ++i)
    legal = legal && dims[i] > 0 && dims[i] <= std::uint64_t{1} << 32 && box[i] > 0 &&
            box[i] <= 256 && steps[i] == 1;
  for (unsigned i = 0; i + 1 < rank; ++i)
    legal = legal && strides[i] % 16 == 0 && strides[i] > 0 &&
            strides[i] < std::uint64_t{1} << 40 && (i == 0 || strides[i] % strides[i - 1] == 0);
  if (!legal) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t* o = map->opaque;
  o[0] = reinterpret_cast<std::uint64_t>(address);
  for (int i = 0; i < 4; ++i) o[1 + i] = dims[i], o[8 + i] = box[i];
  for (int i = 0; i < 3; ++i) o[5 + i] = strides[i];
  o[12] = swizzle, o[15] = 0x636f6878;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {90, 90};
  return cudaSuccess;
}
