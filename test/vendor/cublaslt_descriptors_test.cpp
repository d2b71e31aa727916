// Tests of the real cuBLASLt as far as it works without a driver: it loads, accepts our descriptors
// and attributes, and names the reason why it cannot continue.
#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "kernels/gemm/cuda/cublaslt.hpp"

namespace choir::cublaslt {
namespace {

TEST(CublasLt, TakesEveryAttributeOfAProduct) {
  ASSERT_EQ(absent_because(), "");
  cublasLtMatmulDesc_t made = nullptr;
  check(api().create_operation(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  const Operation operation(made);
  const auto set = [&](cublasLtMatmulDescAttributes_t name, auto value) {
    EXPECT_EQ(api().set_operation(operation.get(), name, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS)
        << name;
  };
  float vector = 0;
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  for (const cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU})
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(&vector));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{16});
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(&vector));
  const char wrong = 0;
  EXPECT_NE(api().set_operation(operation.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, &wrong, 1),
            CUBLAS_STATUS_SUCCESS);
}

TEST(CublasLt, TakesLayoutsAndPreferences) {
  ASSERT_EQ(absent_because(), "");
  cublasLtMatrixLayout_t made = nullptr;
  check(api().create_layout(&made, CUDA_R_16BF, 24, 16, 24), "a matrix");
  const Layout layout(made);
  cublasLtMatmulPreference_t native = nullptr;
  check(api().create_preference(&native), "a preference");
  const Preference wish(native);
  const std::size_t workspace = 32 << 20;
  EXPECT_EQ(api().set_preference(wish.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                 sizeof workspace),
            CUBLAS_STATUS_SUCCESS);
  const std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, alignment = 16;
  for (const auto& [name, value] : {std::pair{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, scheme},
                                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment},
                                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment}})
    EXPECT_EQ(api().set_preference(wish.get(), name, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
}

TEST(CublasLt, NamesItsVersionAndItsStatus) {
  EXPECT_EQ(version_text().find("cuBLASLt 1"), 0u) << version_text();
  try {
    check(CUBLAS_STATUS_NOT_INITIALIZED, "a handle");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cuBLASLt: a handle: CUBLAS_STATUS_NOT_INITIALIZED");
  }
}

}  // namespace
}  // namespace choir::cublaslt
