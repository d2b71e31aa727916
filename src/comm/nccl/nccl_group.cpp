#include "src/comm/nccl/nccl_group.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "choir/core/error.hpp"
#include "choir_cuda_features.hpp"
#include "kernels/sums/sums.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/nccl_needs.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/core/quantities.hpp"

#if defined(CHOIR_HAVE_NCCL) && !defined(CHOIR_HOST_CUDA)
#include <nccl.h>

namespace choir::nccl {
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(int{ncclSuccess} == static_cast<int>(Result::success));
static_assert(int{ncclRemoteError} == static_cast<int>(Result::remote_error));
static_assert(int{ncclInProgress} == static_cast<int>(Result::in_progress));
static_assert(int{ncclUint8} == static_cast<int>(Type::u8));
static_assert(int{ncclInt32} == static_cast<int>(Type::i32));
static_assert(int{ncclInt64} == static_cast<int>(Type::i64));
static_assert(int{ncclFloat16} == static_cast<int>(Type::f16));
static_assert(int{ncclFloat32} == static_cast<int>(Type::f32));
static_assert(int{ncclFloat64} == static_cast<int>(Type::f64));
static_assert(int{ncclBfloat16} == static_cast<int>(Type::bf16));
static_assert(int{ncclSum} == static_cast<int>(Op::sum));
static_assert(int{ncclMax} == static_cast<int>(Op::max));
static_assert(int{ncclMin} == static_cast<int>(Op::min));
static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN);
static_assert(offsetof(ncclConfig_t, version) == offsetof(Config, version));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(Config, blocking));
static_assert(offsetof(ncclConfig_t, netName) == offsetof(Config, net_name));
static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(Config, split_share));
}  // namespace choir::nccl
#endif

namespace choir::nccl {
namespace {

SharedLibrary open(const std::string& path) {
  if (!path.empty()) return {"NCCL", {path.c_str()}};
  return {"NCCL", {"libnccl.so.2", "libnccl.so"}};
}

/// Finds a function of a loaded library that older versions do not have.
template <class F>
void find_in(const std::string& library, F*& function, const char* symbol) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) function = reinterpret_cast<F*>(dlsym(handle, symbol));
}

}  // namespace

Library::Library(const std::string& path) : library_(open(path)) {
  library_.find(get_version, "ncclGetVersion");
  library_.find(get_unique_id, "ncclGetUniqueId");
  library_.find(comm_init, "ncclCommInitRankConfig");
  library_.find(comm_finalize, "ncclCommFinalize");
  library_.find(comm_destroy, "ncclCommDestroy");
  library_.find(comm_abort, "ncclCommAbort");
  library_.find(async_error, "ncclCommGetAsyncError");
  library_.find(error_string, "ncclGetErrorString");
  library_.find(last_error, "ncclGetLastError");
  library_.find(group_start, "ncclGroupStart");
  library_.find(group_end, "ncclGroupEnd");
  library_.find(all_reduce, "ncclAllReduce");
  library_.find(reduce_scatter, "ncclReduceScatter");
  library_.find(all_gather, "ncclAllGather");
  library_.find(broadcast, "ncclBroadcast");
  library_.find(reduce, "ncclReduce");
  library_.find(send, "ncclSend");
  library_.find(receive, "ncclRecv");
  library_.find(mem_alloc, "ncclMemAlloc");  // 2.19
  library_.find(mem_free, "ncclMemFree");
  if (!loaded()) return;
  const std::string library = path.empty() ? soname() : path;
  int number = 0;
  constexpr int kFirstWindows = 22700;
  if (get_version(&number) == Result::success && number >= kFirstWindows) {
    find_in(library, window_register, "ncclCommWindowRegister");
    find_in(library, window_deregister, "ncclCommWindowDeregister");
  }
  find_in(library, comm_register, "ncclCommRegister");
  find_in(library, comm_deregister, "ncclCommDeregister");
}

std::string Library::version() const {
  int number = 0;
  if (!loaded() || get_version(&number) != Result::success) return "";
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

namespace {

constexpr std::size_t kGranule = 32;  // 128 bytes
/// Timeout of ncclCommAbort in seconds; its flag, which ends all kernels, takes effect at once.
constexpr double kForAbort = 0.1;
/// Seconds during which a call is awaited without sleeping. NCCL prepares each call in a thread
/// that it starts, which takes some tens of microseconds.
constexpr double kSpinSeconds = 100e-6;

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace

Group::Group(Communicator& control, std::string label, const NcclOptions& options, int most_blocks,
             std::shared_ptr<const Library> api)
    : api_(std::move(api)),
      label_(std::move(label)),
      timeout_(options.timeout_seconds),
      most_blocks_(most_blocks),
      unwinding_(std::uncaught_exceptions()) {
  try {
    start(control);
  } catch (...) {
    abort();
    throw;
  }
}

void Group::start(Communicator& control) {
  UniqueId id{};
  together(control, [&] {
    if (!api_->loaded()) throw CommError(label_ + ": " + api_->reason());
    if (control.rank() == 0) settle(api_->get_unique_id(&id), "ncclGetUniqueId");
  });
  control.broadcast(&id, sizeof id, 0);
  // An MPI that completes its broadcast only in a later call would leave its peers waiting in NCCL.
  control.barrier();
  const auto calls = enter();
  together(control, [&] {
    Config config;
    config.blocking = 0;
    if (most_blocks_ > 0) config.max_ctas = most_blocks_;
    settle(api_->comm_init(&comm_, control.size(), id, control.rank(), &config),
           "ncclCommInitRankConfig");
  });
}

Group::~Group() {
  if (broken_ || std::uncaught_exceptions() > unwinding_) {
    abort();
    return;
  }
  const auto calls = enter();
  try {
    settle(api_->comm_finalize(comm_), "ncclCommFinalize");
    const std::lock_guard lock(mutex_);
    if (!aborted_) api_->comm_destroy(comm_);
    aborted_ = true;
  } catch (...) {  // the work is done, and the error cannot be reported
    abort();
  }
}

void Group::abort() {
  broken_ = true;
  const std::lock_guard lock(mutex_);
  if (aborted_ || comm_ == nullptr) return;
  aborted_ = true;
  // The kernels end at once, but the call returns only when the last graph with work of the
  // communicator is destroyed. The caller may be the one who destroys these graphs, and other
  // communicators must be aborted too.
  run_bounded([api = api_, comm = comm_] { api->comm_abort(comm); }, kForAbort);
}

Result Group::state() {
  const std::lock_guard lock(mutex_);
  if (aborted_) fail("a call", "aborted, by the watchdog or after a failure");
  Result state = Result::success;
  const Result asked = api_->async_error(comm_, &state);
  return asked == Result::success ? state : asked;
}

Result Group::result_of(Result code, const char* call) {
  const double from = now_seconds();
  while (code == Result::in_progress) {
    const double waited = now_seconds() - from;
    if (waited > timeout_) fail(call, fmt::format("not finished after {:g} s", timeout_));
    // A sleep takes longer than NCCL usually needs.
    if (waited > kSpinSeconds) std::this_thread::sleep_for(std::chrono::microseconds(20));
    code = state();
  }
  return code;
}

void Group::settle(Result code, const char* call) {
  code = result_of(code, call);
  if (code != Result::success) fail(call, api_->error_string(code));
}

void* Group::register_memory(void* data, std::size_t bytes) {
  constexpr int kSymmetric = 1;
  const auto calls = enter();
  void* registration = nullptr;
  const Result code = has_windows()
                          ? api_->window_register(comm_, data, bytes, &registration, kSymmetric)
                          : api_->comm_register(comm_, data, bytes, &registration);
  return result_of(code, "a registration") == Result::success ? registration : nullptr;
}

void Group::deregister(void* registration) noexcept {
  const auto calls = enter();
  if (broken_ || aborted_) return;
  try {
    settle(has_windows() ? api_->window_deregister(comm_, registration)
                         : api_->comm_deregister(comm_, registration),
           "the end of a registration");
  } catch (const CommError&) {  // the next call throws
  }
}

void Group::require_healthy() {
  if (broken_)
    throw CommError(label_ + " is broken by an earlier error", "the first error has the cause");
  const Result code = state();
  if (code != Result::success && code != Result::in_progress)
    fail("an earlier call", api_->error_string(code));
}

std::string Group::message(const char* call, const std::string& words) const {
  const char* last = aborted_ ? nullptr : api_->last_error(comm_);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(" ({})", last) : "";
  return fmt::format("{}: {}: {}{}", label_, call, words, detail);
}

void Group::fail(const char* call, const std::string& words) {
  broken_ = true;
  throw CommError(message(call, words),
                  "set NCCL_DEBUG=INFO for details; parallel.transport=staged does not use NCCL");
}

std::string Group::unseen_failure() {
  const std::unique_lock calls(calls_, std::try_to_lock);
  if (!calls.owns_lock() || broken_) return {};
  const std::lock_guard lock(mutex_);
  if (aborted_ || comm_ == nullptr) return {};
  Result state = Result::success;
  const Result asked = api_->async_error(comm_, &state);
  const Result code = asked == Result::success ? state : asked;
  if (code == Result::success || code == Result::in_progress) return {};
  return message("a step that is under way", api_->error_string(code));
}

std::size_t TreeSum::slice_limit() {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const std::size_t limit =
      std::max(kGranule, kTreeScratchBytes / sizeof(float) / ranks / kGranule * kGranule);
  if (scratch_.data() == nullptr) {
    scratch_ = Buffer(device_, ranks * limit * sizeof(float));
    terms_.resize(ranks);
  }
  return limit;
}

template <class SliceOf>
void TreeSum::exchange_and_add(const Stream& stream, const SliceOf& slice_of) {
  const Slice mine = slice_of(rank_);
  const std::size_t limit = slice_limit();
  const Library& api = group_.api();
  group_.grouped([&] {
    for (int p = 0; p < ranks_; ++p) {
      const auto at = static_cast<std::size_t>(p);
      terms_[at] = p == rank_ ? mine.data : static_cast<float*>(scratch_.data()) + at * limit;
      if (p == rank_) continue;
      if (const Slice theirs = slice_of(p); theirs.count > 0)
        group_.settle(
            api.send(theirs.data, theirs.count, Type::f32, p, group_.handle(), native(stream)),
            "ncclSend");
      if (mine.count > 0)
        group_.settle(
            api.receive(terms_[at], mine.count, Type::f32, p, group_.handle(), native(stream)),
            "ncclRecv");
    }
  });
  if (mine.count == 0) return;
  const auto view = [&](float* data) {
    return TensorView{data, DType::f32, {static_cast<std::int64_t>(mine.count)}};
  };
  const auto ranks = static_cast<std::size_t>(ranks_);
  for (std::size_t width = 1; width < ranks; width *= 2)
    for (std::size_t p = 0; p + width < ranks; p += 2 * width) {
      const bool last = 2 * width >= ranks;
      float* sum = last ? mine.data : terms_[p];
      ops::add(stream, view(terms_[p]), view(terms_[p + width]), view(sum));
    }
}

void TreeSum::all_reduce(const Stream& stream, float* data, std::size_t count) {
  const std::size_t limit = slice_limit() * static_cast<std::size_t>(ranks_);
  for_each_chunk(count, limit, [&](std::size_t offset, std::size_t length) {
    const auto slice_of = [&](int p) -> Slice {
      const Chunk share = share_of(length, ranks_, p, kGranule);
      return {data + offset + share.offset, share.count};
    };
    exchange_and_add(stream, slice_of);
    group_.grouped([&] {
      for (int p = 0; p < ranks_; ++p)
        if (const Slice slice = slice_of(p); slice.count > 0)
          group_.settle(group_.api().broadcast(slice.data, slice.data, slice.count, Type::f32, p,
                                               group_.handle(), native(stream)),
                        "ncclBroadcast");
    });
  });
}

void TreeSum::reduce_scatter(const Stream& stream, float* data, std::size_t count) {
  for_each_chunk(count, slice_limit(), [&](std::size_t offset, std::size_t length) {
    exchange_and_add(stream, [&](int p) -> Slice {
      return {data + static_cast<std::size_t>(p) * count + offset, length};
    });
  });
}

}  // namespace choir::nccl
