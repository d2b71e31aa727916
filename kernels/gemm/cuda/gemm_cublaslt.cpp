// Products by cuBLASLt: plans of products, and the operations of gemm.hpp on a cuda device.
//
// Epilogues in the terms of the library:
//   bias, one for each of its rows        = our [n]
//   aux, of the shape of C                = our pre_activation, the same memory
// Its gradients of a bias (BGRADB, DGELU_BGRAD) are not used: on an H100 they were a separate
// kernel (13 us for 6000 x 2048 of bf16) that overwrites, and adding its result took 3 us more.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "choir/core/error.hpp"
#include "kernels/bench/bench_operands.hpp"
#include "kernels/bench/op_bench.hpp"
#include "kernels/gemm/cuda/cublaslt.hpp"
#include "src/device/collective_share.hpp"
#include "src/device/cuda.hpp"

namespace choir::cublaslt {
namespace {

using ops::GemmEpilogue;

/// Largest power of two that divides the address and the addresses of all following matrices, up to
/// the alignment of arena tensors.
std::uint32_t alignment_of(const void* address, std::int64_t stride = 0, DType type = DType::u8) {
  constexpr std::uintptr_t kMost = 64;
  const auto at = reinterpret_cast<std::uintptr_t>(address) | kMost |
                  static_cast<std::uintptr_t>(stride) * size_of(type);
  return static_cast<std::uint32_t>(at & (~at + 1));
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

/// The library's name for the whole epilogue; empty if it has none.
std::optional<cublasLtEpilogue_t> epilogue_of(const GemmArgs& args) {
  switch (args.epilogue) {
    case GemmEpilogue::none:
      return args.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::gelu_tanh:
      if (args.pre_activation)
        return args.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      return args.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case GemmEpilogue::gelu_tanh_gradient:
      if (args.bias) return {};
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::gelu:
    case GemmEpilogue::gelu_gradient:
      return {};  // computed by a kernel of ours (kernels/gemm/gemm_gelu.cu)
  }
  return {};
}

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t name, T value) {
  check(api().set_operation(operation.get(), name, &value, sizeof value),
        fmt::format("attribute {} of a product", static_cast<int>(name)));
}
template <class T>
void set(const Preference& wish, cublasLtMatmulPreferenceAttributes_t name, T value) {
  check(api().set_preference(wish.get(), name, &value, sizeof value),
        fmt::format("preference {} of a product", static_cast<int>(name)));
}

/// Layout of matrices stored by rows, with `stride` elements between matrices.
Layout layout_of(DType type, std::int64_t rows, std::int64_t columns, std::int64_t batch,
                 std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(api().create_layout(&layout, type_of(type), static_cast<std::uint64_t>(columns),
                            static_cast<std::uint64_t>(rows), columns),
        "a matrix");
  Layout made(layout);
  if (batch == 1) return made;
  const auto count = static_cast<std::int32_t>(batch);
  check(api().set_layout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "the number of matrices");
  check(
      api().set_layout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
      "the stride between matrices");
  return made;
}

void bind(const Plan& plan, const GemmArgs& args) {
  if (args.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  if (args.pre_activation)
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.pre_activation);
}

}  // namespace

Key key_of(const GemmArgs& args) {
  return {
      product_of(args),
      {alignment_of(args.a, args.stride_a, args.in), alignment_of(args.b, args.stride_b, args.in),
       alignment_of(args.c, args.stride_c, args.out), alignment_of(args.bias),
       alignment_of(args.pre_activation)}};
}

// A product beside a collective has a plan of its own.
const Plan& Plans::of(const Stream& stream, const GemmArgs& args) {
  type_of(args.in);  // refuses unsupported types before anything is allocated
  prepare(stream);
  Key key = key_of(args);
  Device& device = stream.device();
  if (const CollectiveRoom& room = collective_room(device); room.reserved() > 0)
    key.multiprocessors = room.left_of(cuda::card_of(device)->multiprocessors);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  Plan& plan = plans_.emplace(key, make(key, args)).first->second;
  plan.chosen = choose(plan, key);
  return plan;
}

void Plans::prepare(const Stream& stream) {
  if (handle_) {
    CHOIR_CHECK(stream.native() == stream_,
                "products on two streams of a device share scratch memory");
    return;
  }
  workspace_ = Buffer(stream.device(), kGemmCudaWorkspace);
  stream_ = stream.native();
  cublasLtHandle_t handle = nullptr;
  check(api().create(&handle), "a handle");
  handle_.reset(handle);
}

Plan Plans::make(const Key& key, const GemmArgs& args) const {
  const ops::Product& p = key.product;
  Plan plan;
  // According to the manual's table of types (cublasLtMatmul, CUBLAS_COMPUTE_32F), a bias has the
  // type of C.
  if (p.bias && p.in != p.out) {
    plan.refusal = fmt::format("it does not support a bias of {} here", name_of(p.in));
    return plan;
  }
  const auto epilogue = epilogue_of(args);
  if (!epilogue) {
    plan.refusal = "it does not support the epilogue";
    return plan;
  }
  cublasLtMatmulDesc_t operation = nullptr;
  check(api().create_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  plan.operation.reset(operation);
  const auto transposed = [](bool yes) { return yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed(p.transpose_b));
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed(p.transpose_a));
  set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, *epilogue);
  if (p.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.out));
  if (p.pre_activation) set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
  if (key.multiprocessors > 0)
    set(plan.operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{key.multiprocessors});
  bind(plan, args);  // the choice depends on the alignment of these addresses
  plan.a =
      layout_of(p.in, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.batch, p.stride_b);
  plan.b =
      layout_of(p.in, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.batch, p.stride_a);
  plan.c = layout_of(p.out, p.m, p.n, p.batch, p.stride_c);
  ask(plan, key);
  return plan;
}

void Plans::ask(Plan& plan, const Key& key) const {
  cublasLtMatmulPreference_t native = nullptr;
  check(api().create_preference(&native), "a preference");
  const Preference wish(native);
  set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmCudaWorkspace);
  set(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignment[1]);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignment[0]);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.alignment[2]);
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignment[2]);
  std::array<cublasLtMatmulHeuristicResult_t, ops::kMostProposals> proposed{};
  int count = 0;
  const cublasStatus_t status =
      api().choose(handle_.get(), plan.operation.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                   plan.c.get(), wish.get(), ops::kMostProposals, proposed.data(), &count);
  plan.refusal = api().get_status_name(status);
  for (std::size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < static_cast<std::size_t>(count);
       ++i) {
    const cublasLtMatmulHeuristicResult_t& one = proposed[i];
    if (one.state == CUBLAS_STATUS_SUCCESS && one.workspaceSize <= kGemmCudaWorkspace)
      plan.ways[i] = {one.algo, one.workspaceSize};
  }
}

const Way* Plans::choose(const Plan& plan, const Key& key) const {
  GemmArgs aligned;  // aligned like the timed operands, which have the best alignment
  aligned.in = key.product.in, aligned.out = key.product.out;
  aligned.stride_a = key.product.stride_a, aligned.stride_b = key.product.stride_b;
  aligned.stride_c = key.product.stride_c;
  const auto choice = choices_.find(key.product);
  // Proposals were timed on all multiprocessors.
  if (choice != choices_.end() && key.multiprocessors == 0 &&
      key.alignment == key_of(aligned).alignment) {
    const auto& way = plan.ways.at(static_cast<std::size_t>(choice->second));
    if (way) return &*way;
  }
  for (const auto& way : plan.ways)
    if (way) return &*way;
  return nullptr;
}

void Plans::run(const Plan& plan, const Way& way, const GemmArgs& args) const {
  bind(plan, args);
  const float alpha = 1, beta = args.accumulate ? 1 : 0;
  check(api().multiply(handle_.get(), plan.operation.get(), &alpha, args.b, plan.a.get(), args.a,
                       plan.b.get(), &beta, args.c, plan.c.get(), args.c, plan.c.get(),
                       &way.algorithm, workspace_.data(), kGemmCudaWorkspace,
                       static_cast<cudaStream_t>(stream_)),
        "a product");
}

}  // namespace choir::cublaslt

namespace choir {
namespace {

// gemm_cuda() by cuBLASLt: sums and split sums in f32, f32 products in f32, not TF32. The algorithm
// is the first that the library's heuristic proposes, so that equal runs compute equal bits, unless
// proposals were timed and one was chosen (ops::Product).

cublaslt::Plans& plans_of(Device& device) {
  return device.plans().get<cublaslt::Plans>();
}

/// A product of random numbers.
class TimedProduct {
 public:
  TimedProduct(Device& device, const ops::Product& p) : data_(device, pool_) {
    args_ = {.m = p.m, .n = p.n, .k = p.k};
    args_.transpose_a = p.transpose_a, args_.transpose_b = p.transpose_b;
    args_.accumulate = p.accumulate, args_.in = p.in, args_.out = p.out;
    args_.epilogue = p.epilogue, args_.batch = p.batch;
    args_.stride_a = p.stride_a, args_.stride_b = p.stride_b, args_.stride_c = p.stride_c;
    const auto matrices = [&p](std::int64_t stride) { return stride == 0 ? 1 : p.batch; };
    args_.a = random(p.in, matrices(p.stride_a) * p.m * p.k);
    args_.b = random(p.in, matrices(p.stride_b) * p.k * p.n);
    args_.c = random(p.out, p.batch * p.m * p.n);
    if (p.bias) args_.bias = random(p.in, p.n);
    if (p.pre_activation) args_.pre_activation = random(p.out, p.m * p.n);
  }
  const GemmArgs& args() const { return args_; }

 private:
  void* random(DType type, std::int64_t count) { return data_.normal(type, {count})[0].data; }

  ops::NormalPool pool_;
  ops::BenchOperands data_;
  GemmArgs args_;
};

}  // namespace

bool gemm_cuda_offers(const Stream& stream, const GemmArgs& args) {
  return plans_of(stream.device()).of(stream, args).chosen != nullptr;
}

void gemm_cuda(const Stream& stream, const GemmArgs& args) {
  cublaslt::Plans& plans = plans_of(stream.device());
  const cublaslt::Plan& plan = plans.of(stream, args);
  if (!plan.chosen)
    throw Error(ExitCode::other,
                fmt::format("cuBLASLt does not support {} x {} x {} of {} into {}: {}", args.m,
                            args.n, args.k, name_of(args.in), name_of(args.out), plan.refusal));
  plans.run(plan, *plan.chosen, args);
}

std::vector<double> time_cuda_proposals(const Stream& stream, const ops::Product& product) {
  const TimedProduct timed(stream.device(), product);
  cublaslt::Plans plans;  // separate plans: those of the device are made once the choice is known
  const cublaslt::Plan& plan = plans.of(stream, timed.args());
  const auto usable = std::count_if(plan.ways.begin(), plan.ways.end(),
                                    [](const auto& way) { return way.has_value(); });
  if (usable < 2) return {};
  std::vector<double> seconds;
  for (const auto& way : plan.ways) {
    seconds.push_back(std::numeric_limits<double>::infinity());
    if (!way) continue;
    seconds.back() =
        ops::median_seconds(stream, 0, [&](std::int64_t) { plans.run(plan, *way, timed.args()); });
  }
  return seconds;
}

void choose_cuda_products(Device& device, const ops::ProductChoices& choices) {
  plans_of(device).prefer(choices);
}

std::string cuda_product_library() {
  return cublaslt::version_text();
}

}  // namespace choir
