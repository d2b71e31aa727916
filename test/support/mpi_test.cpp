#include "test/support/mpi_test.hpp"

#include <vector>

#include "src/comm/mpi/mpi_communicator.hpp"

namespace choir::test {

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

::testing::AssertionResult on_all_ranks(bool ok) {
  std::vector<int> verdicts(static_cast<std::size_t>(world_size()));
  verdicts[static_cast<std::size_t>(world_rank())] = ok ? 1 : 0;
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, verdicts.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::string failed;
  for (std::size_t r = 0; r < verdicts.size(); ++r)
    if (verdicts[r] == 0) failed += (failed.empty() ? "" : ", ") + std::to_string(r);
  if (failed.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "false on rank(s) " << failed << ": ";
}

}  // namespace choir::test
