#include "src/comm/mpi/mpi_api.hpp"

#include <array>

#include "choir/core/error.hpp"

namespace choir {

std::string mpi_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS)
    return fmt::format("MPI error {}", code);
  return {text.data(), static_cast<std::size_t>(length)};
}

void throw_mpi_error(int code, std::string_view call, std::string_view where,
                     std::source_location at) {
  throw CommError(
      fmt::format("{}{}{} failed: {}", call, where.empty() ? "" : " on ", where, mpi_text(code)),
      "look for an earlier error of another rank; `choir doctor` tests the MPI set-up", at);
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return MPI_DOUBLE;
    case DType::f32:
      return MPI_FLOAT;
    case DType::i64:
      return MPI_INT64_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::u16:
      return MPI_UINT16_T;
    case DType::u8:
      return MPI_UINT8_T;
    default:
      break;
  }
  CHOIR_CHECK(false, "MPI has no type for {}", name_of(dtype));
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::min:
      return MPI_MIN;
  }
  return MPI_OP_NULL;
}

MPI_Comm mpi_handle(const Communicator& comm) {
  const auto* own = dynamic_cast<const HasMpiHandle*>(&comm);
  CHOIR_CHECK(own != nullptr, "communicator {} ({}) has no MPI handle", comm.name(),
              comm.transport());
  return own->mpi_handle();
}

}  // namespace choir
