// gemm_cuda() by cuBLASLt.
//
// The library is column-major: what we call C [m, n] by rows it calls C^T [n, m] by columns, the
// same memory. So C^T = op(B)^T op(A)^T is asked for: its "A" is our B, its "B" our A, its rows are
// our n, its columns our m. A matrix we store by rows [r, c] is one by columns [c, r] with leading
// extent c; it is transposed for the library exactly where it is for us.
//   bias, one for each of its rows        = our [n]
//   aux, of the shape of C                = our pre_activation, the same memory
//   bias gradient of "B" (BGRADB), [cols] = sums over k of our A, [m]
//   bias gradient of D* (BGRAD), [rows]   = sums over m of our C, [n]
// The algorithm is the first that its heuristic proposes (nothing is timed, so that equal runs
// compute equal bits), with sums and split sums in f32, and f32 products in f32, not TF32.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "choir/core/error.hpp"
#include "kernels/gemm/cuda/cublaslt_api.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {
namespace {

using ops::GemmEpilogue;

/// Largest power of two that divides the address, and those of all matrices behind it, up to what
/// every tensor of an arena has.
std::uint32_t alignment_of(const void* address, std::int64_t stride = 0, DType type = DType::u8) {
  constexpr std::uintptr_t kMost = 64;
  const auto at = reinterpret_cast<std::uintptr_t>(address) | kMost |
                  static_cast<std::uintptr_t>(stride) * size_of(type);
  return static_cast<std::uint32_t>(at & (~at + 1));
}

/// Bias in, or sums out: the library has one place for them.
const void* vector_of(const GemmArgs& args) {
  if (args.bias) return args.bias;
  return args.sums_of_a ? args.sums_of_a : args.sums_of_c;
}

/// Everything a plan depends on.
struct Key {
  std::int64_t m, n, k;
  std::array<std::uint32_t, 5> alignment;  // of A, B, C, the vector, the pre-activation
  DType in, out;
  GemmEpilogue epilogue;
  bool transpose_a, transpose_b, accumulate, bias, pre_activation, sums_of_a, sums_of_c;
  std::int64_t batch, stride_a, stride_b, stride_c;
  friend auto operator<=>(const Key&, const Key&) = default;
};
Key key_of(const GemmArgs& args) {
  return {
      args.m,
      args.n,
      args.k,
      {alignment_of(args.a, args.stride_a, args.in), alignment_of(args.b, args.stride_b, args.in),
       alignment_of(args.c, args.stride_c, args.out), alignment_of(vector_of(args)),
       alignment_of(args.pre_activation)},
      args.in,
      args.out,
      args.epilogue,
      args.transpose_a,
      args.transpose_b,
      args.accumulate,
      args.bias != nullptr,
      args.pre_activation != nullptr,
      args.sums_of_a != nullptr,
      args.sums_of_c != nullptr,
      args.batch,
      args.stride_a,
      args.stride_b,
      args.stride_c};
}

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      throw DeckError(fmt::format("no cuda product of elements of type {}", name_of(type)),
                      type == DType::f64 ? "fp64 runs on the CPU: device=cpu" : "");
  }
}

/// The library's name for all that happens behind the product; empty where it has none.
std::optional<cublasLtEpilogue_t> epilogue_of(const GemmArgs& args) {
  const bool sums = args.sums_of_a || args.sums_of_c;
  if ((args.sums_of_a && args.sums_of_c) || (args.bias && sums)) return {};
  switch (args.epilogue) {
    case GemmEpilogue::none:
      if (args.sums_of_c) return {};
      if (args.sums_of_a) return CUBLASLT_EPILOGUE_BGRADB;
      return args.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::gelu_tanh:
      if (sums) return {};
      if (args.pre_activation)
        return args.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return args.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case GemmEpilogue::gelu_tanh_gradient:
      if (args.sums_of_a || args.bias) return {};
      return args.sums_of_c ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
  }
  return {};
}

template <class T>
void set(const cublaslt::Operation& operation, cublasLtMatmulDescAttributes_t name, T value) {
  cublaslt::check(cublaslt::api().set_operation(operation.get(), name, &value, sizeof value),
                  fmt::format("attribute {} of a product", static_cast<int>(name)));
}
template <class T>
void set(const cublaslt::Preference& wish, cublasLtMatmulPreferenceAttributes_t name, T value) {
  cublaslt::check(cublaslt::api().set_preference(wish.get(), name, &value, sizeof value),
                  fmt::format("preference {} of a product", static_cast<int>(name)));
}

/// Matrices stored by rows, `stride` elements from one to the next.
cublaslt::Layout layout_of(DType type, std::int64_t rows, std::int64_t columns, std::int64_t batch,
                           std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  cublaslt::check(
      cublaslt::api().create_layout(&layout, type_of(type), static_cast<std::uint64_t>(columns),
                                    static_cast<std::uint64_t>(rows), columns),
      "a matrix");
  cublaslt::Layout made(layout);
  if (batch == 1) return made;
  const auto count = static_cast<std::int32_t>(batch);
  cublaslt::check(
      cublaslt::api().set_layout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
      "the number of matrices");
  cublaslt::check(cublaslt::api().set_layout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &stride, sizeof stride),
                  "the way from matrix to matrix");
  return made;
}

/// One product, compiled. Without an algorithm: the library does not offer it.
struct Plan {
  cublaslt::Operation operation;
  cublaslt::Layout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  std::size_t workspace = 0;
  std::string refusal;
};

void bind(const Plan& plan, const GemmArgs& args) {
  if (const void* vector = vector_of(args))
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  if (args.pre_activation)
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.pre_activation);
}

/// The plans, the handle and the scratch memory of one device.
class Plans {
 public:
  const Plan& of(const Stream& stream, const GemmArgs& args) {
    prepare(stream);
    const Key key = key_of(args);
    const auto found = plans_.find(key);
    return found != plans_.end() ? found->second
                                 : plans_.emplace(key, make(key, args)).first->second;
  }
  cublasLtHandle_t handle() const { return handle_.get(); }
  void* workspace() const { return workspace_.data(); }

 private:
  void prepare(const Stream& stream) {
    if (handle_) {
      CHOIR_CHECK(stream.native() == stream_,
                  "products on two streams of a device: they share scratch memory");
      return;
    }
    workspace_ = Buffer(stream.device(), kGemmCudaWorkspace);
    stream_ = stream.native();
    cublasLtHandle_t handle = nullptr;
    cublaslt::check(cublaslt::api().create(&handle), "a handle");
    handle_.reset(handle);
  }
  Plan make(const Key& key, const GemmArgs& args);
  void choose(Plan& plan, const Key& key);

  cublaslt::Handle handle_;
  NativeStream stream_ = nullptr;
  Buffer workspace_;
  std::map<Key, Plan> plans_;
};

Plan Plans::make(const Key& key, const GemmArgs& args) {
  Plan plan;
  // The manual's table of types (cublasLtMatmul, CUBLAS_COMPUTE_32F): a bias has the type of C.
  if (key.bias && key.in != key.out) {
    plan.refusal = fmt::format("no bias of {} there", name_of(key.in));
    return plan;
  }
  const auto epilogue = epilogue_of(args);
  if (!epilogue) {
    plan.refusal = "it has no such epilogue";
    return plan;
  }
  cublasLtMatmulDesc_t operation = nullptr;
  cublaslt::check(cublaslt::api().create_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                  "a product");
  plan.operation.reset(operation);
  const auto transposed = [](bool yes) { return yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed(key.transpose_b));
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed(key.transpose_a));
  set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, *epilogue);
  if (key.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.out));
  if (key.pre_activation) set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  bind(plan, args);  // the choice looks at how these addresses are aligned
  plan.a = layout_of(key.in, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n,
                     key.batch, key.stride_b);
  plan.b = layout_of(key.in, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k,
                     key.batch, key.stride_a);
  plan.c = layout_of(key.out, key.m, key.n, key.batch, key.stride_c);
  choose(plan, key);
  return plan;
}

void Plans::choose(Plan& plan, const Key& key) {
  cublasLtMatmulPreference_t native = nullptr;
  cublaslt::check(cublaslt::api().create_preference(&native), "a preference");
  const cublaslt::Preference wish(native);
  set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmCudaWorkspace);
  set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment[1]);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment[0]);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment[2]);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment[2]);
  std::array<cublasLtMatmulHeuristicResult_t, 4> proposed{};
  int count = 0;
  const cublasStatus_t status = cublaslt::api().choose(
      handle_.get(), plan.operation.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
      wish.get(), static_cast<int>(proposed.size()), proposed.data(), &count);
  plan.refusal = cublaslt::api().get_status_name(status);
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& one = proposed[static_cast<std::size_t>(i)];
    if (one.state != CUBLAS_STATUS_SUCCESS || one.workspaceSize > kGemmCudaWorkspace) continue;
    plan.algorithm = one.algo;
    plan.workspace = one.workspaceSize;
    return;
  }
}

const Plan& plan_of(const Stream& stream, const GemmArgs& args) {
  type_of(args.in);  // refuses what has no product before anything is allocated
  return stream.device().plans().get<Plans>().of(stream, args);
}

}  // namespace

bool gemm_cuda_offers(const Stream& stream, const GemmArgs& args) {
  return plan_of(stream, args).algorithm.has_value();
}

void gemm_cuda(const Stream& stream, const GemmArgs& args) {
  const Plan& plan = plan_of(stream, args);
  const Plans& plans = stream.device().plans().get<Plans>();
  if (!plan.algorithm)
    throw Error(ExitCode::other,
                fmt::format("cuBLASLt does not offer {} x {} x {} of {} into {}: {}", args.m,
                            args.n, args.k, name_of(args.in), name_of(args.out), plan.refusal));
  bind(plan, args);
  const float alpha = 1, beta = args.accumulate ? 1 : 0;
  cublaslt::check(
      cublaslt::api().multiply(plans.handle(), plan.operation.get(), &alpha, args.b, plan.a.get(),
                               args.a, plan.b.get(), &beta, args.c, plan.c.get(), args.c,
                               plan.c.get(), &*plan.algorithm, plans.workspace(),
                               kGemmCudaWorkspace, static_cast<cudaStream_t>(stream.native())),
      "a product");
}

}  // namespace choir
