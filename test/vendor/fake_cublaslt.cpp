// libcublasLt.so.13 for tests: the functions that choir uses, written from the library's manual, on
// host memory, column by column. Every call is complete when it returns. Calls that the manual does
// not allow are refused as the library would refuse them.
#include <cublasLt.h>

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/cpu/ref_element.hpp"

struct cublasLtContext {};

namespace {

using choir::DType;

int choices = 0;

struct Attributes {
  std::map<int, std::vector<unsigned char>> values;
  template <class T>
  T get(int name, T otherwise) const {
    const auto found = values.find(name);
    if (found == values.end() || found->second.size() != sizeof(T)) return otherwise;
    T value;
    std::memcpy(&value, found->second.data(), sizeof(T));
    return value;
  }
  cublasStatus_t set(int name, const void* from, size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(from);
    values[name].assign(first, first + bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
};

struct Operation : Attributes {
  bool transposed(int name) const {
    return get<cublasOperation_t>(name, CUBLAS_OP_N) == CUBLAS_OP_T;
  }
  cublasLtEpilogue_t epilogue() const {
    return get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  }
  void* vector() const { return get<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr); }
  void* aux() const { return get<void*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr); }
  std::int64_t aux_ld() const { return get<std::int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0); }
  bool has(int bits) const { return (epilogue() & bits) == bits; }
};

struct Matrix {
  DType type;
  std::int64_t rows, columns, leading;
  Attributes batch{};
  std::int32_t count() const {
    return batch.get<std::int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1);
  }
  std::int64_t stride() const {
    return batch.get<std::int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0);
  }
};

DType type_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? DType::f32 : type == CUDA_R_16BF ? DType::bf16 : DType::f16;
}

cudaDataType_t type_of(DType type) {
  return type == DType::f32 ? CUDA_R_32F : type == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

Operation& operation(cublasLtMatmulDesc_t of) {
  return *reinterpret_cast<Operation*>(of);
}
Matrix& matrix(cublasLtMatrixLayout_t of) {
  return *reinterpret_cast<Matrix*>(of);
}

/// The request for which an algorithm was chosen, kept inside it: the promised alignments of A, B,
/// C and D, which addresses must have, and the shape.
struct Promise {
  std::uint32_t alignment[4];
  std::int32_t count;
  std::int64_t rows, columns;
};
static_assert(sizeof(Promise) <= sizeof(cublasLtMatmulAlgo_t));

bool aligned(const void* address, const Matrix& m, std::uint32_t to) {
  const auto step = static_cast<std::uintptr_t>(m.stride()) * size_of(m.type);
  return (reinterpret_cast<std::uintptr_t>(address) | (m.count() > 1 ? step : 0)) % to == 0;
}

constexpr int kAux = 128, kGelu = CUBLASLT_EPILOGUE_GELU, kGeluGradient = 64;

/// op(X) as [rows, columns].
struct Operand {
  const Matrix& m;
  const void* data;
  bool transposed;
  std::int64_t rows() const { return transposed ? m.columns : m.rows; }
  std::int64_t columns() const { return transposed ? m.rows : m.columns; }
  double operator()(std::int64_t r, std::int64_t c) const {
    return choir::ref::load(data, m.type, transposed ? c + r * m.leading : r + c * m.leading);
  }
};

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_gradient(double x) {
  constexpr double h = 1e-6;
  return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

bool fits(const Operation& o, const Operand& a, const Operand& b, const Matrix& d) {
  if (a.m.count() != d.count() || b.m.count() != d.count()) return false;
  if (d.count() > 1 && o.epilogue() != CUBLASLT_EPILOGUE_DEFAULT) return false;
  if (a.rows() != d.rows || b.columns() != d.columns || a.columns() != b.rows()) return false;
  if (d.leading < d.rows || a.m.leading < a.m.rows || b.m.leading < b.m.rows) return false;
  const bool vector = o.has(CUBLASLT_EPILOGUE_BIAS);
  if (vector && o.vector() == nullptr) return false;
  // The manual's table of types: the term that is added to C has the type of C.
  if (vector && type_of(o.get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(d.type))) != d.type)
    return false;
  if (a.m.type != b.m.type || (a.m.type == DType::f32 && d.type != DType::f32)) return false;
  return !o.has(kAux) || (o.aux() && o.aux_ld() % 8 == 0 && o.aux_ld() >= d.rows);
}

}  // namespace

extern "C" {

int fake_cublaslt_choices() {
  return choices;
}

size_t cublasLtGetVersion() {
  return 130100;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                 : "CUBLAS_STATUS_NOT_SUPPORTED";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t of) {
  delete &operation(of);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t of,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void* value, size_t bytes) {
  return operation(of).set(name, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Matrix{
      type_of(type), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t of,
                                                cublasLtMatrixLayoutAttribute_t name,
                                                const void* value, size_t bytes) {
  const bool count = name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (!count && name != CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes != (count ? sizeof(std::int32_t) : sizeof(std::int64_t)))
    return CUBLAS_STATUS_INVALID_VALUE;
  return matrix(of).batch.set(name, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t of) {
  delete &matrix(of);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Attributes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t of) {
  delete reinterpret_cast<Attributes*>(of);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t of,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t bytes) {
  return reinterpret_cast<Attributes*>(of)->set(name, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t of,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  ++choices;
  const Operation& o = operation(of);
  const Operand left{matrix(a), nullptr, o.transposed(CUBLASLT_MATMUL_DESC_TRANSA)};
  const Operand right{matrix(b), nullptr, o.transposed(CUBLASLT_MATMUL_DESC_TRANSB)};
  *count = 0;
  if (most < 1 || !fits(o, left, right, matrix(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  const auto& wishes = *reinterpret_cast<const Attributes*>(wish);
  Promise promise{.alignment = {},
                  .count = matrix(d).count(),
                  .rows = matrix(d).rows,
                  .columns = matrix(d).columns};
  constexpr std::uint32_t kUnlessSaid = 256;  // the manual's default of all four
  constexpr int kNames[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (int i = 0; i < 4; ++i)
    promise.alignment[i] = wishes.get<std::uint32_t>(kNames[i], kUnlessSaid);
  std::memcpy(&results[0].algo, &promise, sizeof promise);
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

namespace {
cublasStatus_t multiply_one(cublasLtMatmulDesc_t of, const void* alpha, const void* a,
                            cublasLtMatrixLayout_t a_is, const void* b, cublasLtMatrixLayout_t b_is,
                            const void* beta, const void* c, cublasLtMatrixLayout_t c_is, void* d,
                            cublasLtMatrixLayout_t d_is);
}

extern "C" {

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t of, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_is, const void* b,
                              cublasLtMatrixLayout_t b_is, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_is, void* d, cublasLtMatrixLayout_t d_is,
                              const cublasLtMatmulAlgo_t* chosen, void*, size_t, cudaStream_t) {
  const Matrix &left = matrix(a_is), &right = matrix(b_is), &out = matrix(d_is);
  Promise promise;
  std::memcpy(&promise, chosen, sizeof promise);
  if (promise.rows != out.rows || promise.columns != out.columns || promise.count != out.count())
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!aligned(a, left, promise.alignment[0]) || !aligned(b, right, promise.alignment[1]) ||
      !aligned(c, matrix(c_is), promise.alignment[2]) || !aligned(d, out, promise.alignment[3]))
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto at = [](const void* base, const Matrix& m, std::int32_t h) {
    return static_cast<std::byte*>(const_cast<void*>(base)) +
           static_cast<std::size_t>(h * m.stride()) * size_of(m.type);
  };
  for (std::int32_t h = 0; h < out.count(); ++h)
    if (const cublasStatus_t status =
            multiply_one(of, alpha, at(a, left, h), a_is, at(b, right, h), b_is, beta,
                         at(c, matrix(c_is), h), c_is, at(d, out, h), d_is);
        status != CUBLAS_STATUS_SUCCESS)
      return status;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

namespace {

cublasStatus_t multiply_one(cublasLtMatmulDesc_t of, const void* alpha, const void* a,
                            cublasLtMatrixLayout_t a_is, const void* b, cublasLtMatrixLayout_t b_is,
                            const void* beta, const void* c, cublasLtMatrixLayout_t c_is, void* d,
                            cublasLtMatrixLayout_t d_is) {
  const Operation& o = operation(of);
  const Operand left{matrix(a_is), a, o.transposed(CUBLASLT_MATMUL_DESC_TRANSA)};
  const Operand right{matrix(b_is), b, o.transposed(CUBLASLT_MATMUL_DESC_TRANSB)};
  const Matrix& out = matrix(d_is);
  if (!fits(o, left, right, out)) return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  for (std::int64_t j = 0; j < out.columns; ++j) {
    for (std::int64_t i = 0; i < out.rows; ++i) {
      const std::int64_t at = i + j * out.leading;
      double x = 0;
      for (std::int64_t p = 0; p < left.columns(); ++p) x += left(i, p) * right(p, j);
      x *= scale;
      if (keep != 0)
        x += keep * choir::ref::load(c, matrix(c_is).type, i + j * matrix(c_is).leading);
      if (o.has(CUBLASLT_EPILOGUE_BIAS)) x += choir::ref::load(o.vector(), out.type, i);
      const std::int64_t in_aux = i + j * o.aux_ld();
      if (o.has(kGeluGradient)) {
        x *= gelu_gradient(choir::ref::load(o.aux(), out.type, in_aux));
      } else if (o.has(kGelu)) {
        if (o.has(kAux)) choir::ref::store(o.aux(), out.type, in_aux, x);
        x = gelu(x);
      }
      choir::ref::store(d, out.type, at, x);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
