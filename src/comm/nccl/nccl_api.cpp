#include "src/comm/nccl/nccl_api.hpp"

#include <fmt/core.h>

#include "choir_cuda_features.hpp"
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
}

std::string Library::version() const {
  int number = 0;
  if (!loaded() || get_version(&number) != Result::success) return "";
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace choir::nccl
