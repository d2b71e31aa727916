// cuBLASLt under host execution: plain loops in f32 (its rounding matters, not its speed), queued
// like a kernel. It is as strict as the manual: functions that the library lacks are absent here,
// too, and a broken promise about addresses is a defect. With HOST_CUDA_ROOM it refuses a product
// on all multiprocessors that runs while a collective is in flight. With HOST_CUDA_PACE=N it
// proposes several algorithms for a product, each of which sums in its own order, and one of them,
// which the shape, the card and N decide, is faster than the others by the clock of events. Without
// it there is only one proposal, because real times of these loops would choose differently in
// every run.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "choir/core/dtype.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/gemm/cuda/cublaslt.hpp"
#include "test/host_cuda/runtime.hpp"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  bool transpose_a = false, transpose_b = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* vector = nullptr;
  void* aux = nullptr;
  std::int64_t aux_leading = 0;
  int vector_type = -1;              // type of a bias; by default that of D
  std::int32_t multiprocessors = 0;  // that the product may use; 0: all
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::int64_t rows, columns, leading;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::size_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // types of A, B, C, D
};

namespace {

using choir::DType;
namespace ref = choir::ref;

constexpr std::uint64_t kWays = 8, kUnusable = 3;
int last_target = 0, crowding = 0;  // for tests

DType type_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? DType::f32 : type == CUDA_R_16F ? DType::f16 : DType::bf16;
}
float load(const void* base, DType type, std::int64_t i) {
  return static_cast<float>(ref::load(base, type, i));
}

constexpr float kRootTwoOverPi = 0.7978845608f, kCubic = 0.044715f;

/// The largest error that the library may have. NVIDIA does not promise more than PTX's
/// tanh.approx.f32: 2^-11 of the value, to either side.
float short_tanh(float x) {
  constexpr float kError = 0x1p-11f;
  const float up = std::bit_cast<std::uint32_t>(x) % 2 == 0 ? 1.0f : -1.0f;
  return std::clamp(std::tanh(x) * (1 + up * kError), -1.0f, 1.0f);
}
float gelu(float x) {
  return 0.5f * x * (1 + short_tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}
float gelu_slope(float x) {
  const float t = short_tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x);
}

/// One call: the product that it computes, by columns.
struct Call {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  const void *a_data, *b_data;
  void* d_data;
  bool accumulate;
  std::uint64_t way;
  double seconds;

  std::int64_t inner() const { return operation.transpose_a ? a.rows : a.columns; }
  bool has(int part) const { return (operation.epilogue & part) == part; }
};

/// op(X) of the h-th matrix in f32, [outer, inner] with contiguous inner index: the columns of
/// op(X), or its rows.
std::vector<float> widened(const void* data, const cublasLtMatrixLayoutOpaque_t& x, int h,
                           std::int64_t outer, std::int64_t inner, bool inner_is_row) {
  std::vector<float> wide(static_cast<std::size_t>(outer * inner));
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i)
      wide[static_cast<std::size_t>(o * inner + i)] =
          load(data, type_of(x.type),
               h * x.stride + (inner_is_row ? o * x.leading + i : i * x.leading + o));
  return wide;
}

float through_epilogue(const Call& call, std::int64_t row, std::int64_t column, float x) {
  const DType type = type_of(call.d.type);
  const cublasLtMatmulDescOpaque_t& operation = call.operation;
  const std::int64_t at = column * operation.aux_leading + row;
  if (call.has(CUBLASLT_EPILOGUE_DGELU)) return x * gelu_slope(load(operation.aux, type, at));
  if (!call.has(CUBLASLT_EPILOGUE_GELU)) return x;
  if (call.has(CUBLASLT_EPILOGUE_GELU_AUX)) ref::store(operation.aux, type, at, double{x});
  return gelu(x);
}

void multiply(const Call& call, int h) {
  const cublasLtMatmulDescOpaque_t& operation = call.operation;
  const std::int64_t rows = call.d.rows, columns = call.d.columns, inner = call.inner();
  const DType type = type_of(call.d.type);
  const std::vector<float> a = widened(call.a_data, call.a, h, inner, rows, !operation.transpose_a);
  const std::vector<float> b =
      widened(call.b_data, call.b, h, columns, inner, !operation.transpose_b);
  std::vector<float> column(static_cast<std::size_t>(rows));
  const std::int64_t first = inner * static_cast<std::int64_t>(call.way) / std::int64_t{kWays};
  for (std::int64_t j = 0; j < columns; ++j) {
    std::fill(column.begin(), column.end(), 0.0f);
    for (std::int64_t i = 0; i < inner; ++i) {
      const std::int64_t p = (first + i) % inner;
      const float factor = b[static_cast<std::size_t>(j * inner + p)];
      const float* from = a.data() + p * rows;
      for (std::size_t r = 0; r < column.size(); ++r) column[r] += factor * from[r];
    }
    for (std::size_t r = 0; r < column.size(); ++r) {
      const auto row = static_cast<std::int64_t>(r);
      const std::int64_t at = h * call.d.stride + j * call.d.leading + row;
      float x = column[r];
      if (call.accumulate) x += load(call.d_data, type, at);
      if (call.has(CUBLASLT_EPILOGUE_BIAS)) x += load(operation.vector, type, row);
      x = through_epilogue(call, row, j, x);
      ref::store(call.d_data, type, at, double{x});
    }
  }
}

std::uint64_t mixed(std::uint64_t seed, std::uint64_t value) {
  return (seed ^ value) * 0x9E3779B97F4A7C15ull + (seed >> 29);
}
/// The product for which an algorithm was proposed; another product must not use it.
std::uint64_t digest(const cublasLtMatmulDescOpaque_t& operation,
                     const cublasLtMatrixLayoutOpaque_t& a, const cublasLtMatrixLayoutOpaque_t& b,
                     const cublasLtMatrixLayoutOpaque_t& d) {
  std::uint64_t all = mixed(operation.transpose_a, operation.transpose_b + 2u);
  all = mixed(all, static_cast<std::uint64_t>(operation.epilogue));
  all = mixed(all, static_cast<std::uint64_t>(operation.multiprocessors));
  for (const auto* x : {&a, &b, &d})
    for (const std::int64_t part : {std::int64_t{x->type}, x->rows, x->columns, x->leading,
                                    std::int64_t{x->batch}, x->stride})
      all = mixed(all, static_cast<std::uint64_t>(part));
  return all;
}

/// Seconds of an algorithm by the clock of events; zero unless a pace is requested.
double seconds_of(std::uint64_t way, std::uint64_t product) {
  const char* pace = std::getenv("HOST_CUDA_PACE");
  if (pace == nullptr) return 0;
  int card = 0;
  cudaGetDevice(&card);
  const std::uint64_t usable[] = {0, 1, 2, 4, 5, 6, 7};
  const std::uint64_t fastest = usable[(std::strtoull(pace, nullptr, 10) + (product >> 40) +
                                        static_cast<std::uint64_t>(card)) %
                                       std::size(usable)];
  constexpr double kLong = 10;  // compared with it the real time of the loops is negligible
  return kLong * (1 + static_cast<double>((way + kWays - fastest) % kWays));
}

/// The manual's tables of types and of the requirements of epilogues (cublasLtMatmul).
bool supported(const cublasLtMatmulDescOpaque_t& operation, const cublasLtMatrixLayoutOpaque_t& a,
               const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& d) {
  constexpr std::int64_t kAuxMultiple = 8;
  if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F)) return false;
  const bool plain = operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  if (d.batch > 1 && !plain) return false;
  const bool biased = operation.epilogue & CUBLASLT_EPILOGUE_BIAS;
  if (biased && operation.vector_type >= 0 && operation.vector_type != d.type) return false;
  if (biased && a.type != d.type) return false;
  const bool aux = operation.epilogue & 128;
  return !aux || (operation.aux_leading >= d.rows && operation.aux_leading % kAuxMultiple == 0);
}

bool fits(const cublasLtMatmulDescOpaque_t& operation, const cublasLtMatrixLayoutOpaque_t& a,
          const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& d) {
  const auto of = [](const cublasLtMatrixLayoutOpaque_t& x, bool transposed) {
    return transposed ? std::pair(x.columns, x.rows) : std::pair(x.rows, x.columns);
  };
  const auto [rows, inner] = of(a, operation.transpose_a);
  const auto [again, columns] = of(b, operation.transpose_b);
  return rows == d.rows && columns == d.columns && inner == again && a.batch == d.batch &&
         b.batch == d.batch;
}

template <class T>
cublasStatus_t take(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t take_transposed(bool& to, const void* value, std::size_t bytes) {
  cublasOperation_t operation{};
  const cublasStatus_t status = take(operation, value, bytes);
  to = operation == CUBLAS_OP_T;
  return status;
}

void require_aligned(const void* address, std::uint64_t promised, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(address) % promised != 0)
    host_cuda::defect("cublasLtMatmul: %s of an algorithm for addresses aligned to %llu is at %p",
                      what, static_cast<unsigned long long>(promised), address);
}

/// A collective waits for a product whose thread blocks are everywhere.
void leave_room(std::int32_t multiprocessors) {
  if (multiprocessors > 0 || !host_cuda::collective_in_flight()) return;
  ++crowding;
  if (std::getenv("HOST_CUDA_ROOM") != nullptr)
    host_cuda::defect("cublasLtMatmul on all multiprocessors while a collective is in flight");
}

}  // namespace

/// CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET of the last product that was queued, and the number of
/// products that ran on all multiprocessors while a collective was in flight.
extern "C" int host_cublaslt_last_target() {
  return last_target;
}
extern "C" int host_cublaslt_crowding() {
  return crowding;
}

std::size_t cublasLtGetVersion() {
  return 130000;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t,
                                        cudaDataType_t) {
  *operation = new cublasLtMatmulDescOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, std::size_t bytes) {
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take_transposed(operation->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take_transposed(operation->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(operation->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(operation->vector, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(operation->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(operation->aux_leading, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(operation->vector_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return take(operation->multiprocessors, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  if (leading < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOpaque_t{type, static_cast<std::int64_t>(rows),
                                             static_cast<std::int64_t>(columns), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void* value, std::size_t bytes) {
  return name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? take(layout->batch, value, bytes)
                                                    : take(layout->stride, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, std::size_t bytes) {
  std::uint32_t schemes = 0;
  if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return take(preference->workspace, value, bytes);
  if (name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return take(schemes, value, bytes);
  return take(preference->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
              bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  *count = 0;
  if (c->type != d->type || !fits(*operation, *a, *b, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(*operation, *a, *b, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::uint64_t product = digest(*operation, *a, *b, *d);
  const bool alone = std::getenv("HOST_CUDA_PACE") == nullptr;
  const std::uint64_t most = std::min(alone ? 1 : kWays, static_cast<std::uint64_t>(wanted));
  // Another number of multiprocessors makes another algorithm the first proposal.
  auto first = static_cast<std::uint64_t>(operation->multiprocessors);
  if (alone && first % kWays == kUnusable) ++first;
  for (std::uint64_t i = 0; i < most; ++i, ++*count) {
    const std::uint64_t way = (first + i) % kWays;
    results[i] = {};
    results[i].algo = {{way, product, preference->alignment[0], preference->alignment[1],
                        preference->alignment[2], preference->alignment[3]}};
    results[i].workspaceSize = std::min<std::size_t>(way << 20, preference->workspace);
    if (way == kUnusable) results[i].state = CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                              cublasLtMatrixLayout_t, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const auto& [way, product, align_a, align_b, align_c, align_d, unused, unused_too] =
      algorithm->data;
  if (product != digest(*operation, *a, *b, *d) || way == kUnusable || c_data != d_data ||
      *static_cast<const float*>(alpha) != 1.0f || workspace == nullptr ||
      workspace_bytes < way << 20)
    return CUBLAS_STATUS_INVALID_VALUE;
  require_aligned(a_data, align_a, "A"), require_aligned(b_data, align_b, "B");
  require_aligned(c_data, align_c, "C"), require_aligned(d_data, align_d, "D");
  last_target = operation->multiprocessors;
  const Call call{*operation, *a,
                  *b,         *d,
                  a_data,     b_data,
                  d_data,     *static_cast<const float*>(beta) != 0.0f,
                  way,        seconds_of(way, product)};
  host_cuda::queue(stream, [call] {
    host_cuda::pass(call.seconds);
    leave_room(call.operation.multiprocessors);
    for (int h = 0; h < call.d.batch; ++h) multiply(call, h);
  });
  return CUBLAS_STATUS_SUCCESS;
}

namespace choir::cublaslt {

const Api& api() {
  static const Api here{
      .get_version = &cublasLtGetVersion,
      .get_status_name = &cublasLtGetStatusName,
      .create = &cublasLtCreate,
      .destroy = &cublasLtDestroy,
      .create_operation = &cublasLtMatmulDescCreate,
      .destroy_operation = &cublasLtMatmulDescDestroy,
      .set_operation = &cublasLtMatmulDescSetAttribute,
      .create_layout = &cublasLtMatrixLayoutCreate,
      .destroy_layout = &cublasLtMatrixLayoutDestroy,
      .set_layout = &cublasLtMatrixLayoutSetAttribute,
      .create_preference = &cublasLtMatmulPreferenceCreate,
      .destroy_preference = &cublasLtMatmulPreferenceDestroy,
      .set_preference = &cublasLtMatmulPreferenceSetAttribute,
      .choose = &cublasLtMatmulAlgoGetHeuristic,
      .multiply = &cublasLtMatmul,
  };
  return here;
}
std::string version_text() {
  return "cuBLASLt of host execution";
}
void check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    host_cuda::defect("cuBLASLt: %.*s: %s", static_cast<int>(what.size()), what.data(),
                      cublasLtGetStatusName(status));
}

}  // namespace choir::cublaslt
