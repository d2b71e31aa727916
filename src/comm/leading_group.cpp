#include "choir/comm/leading_group.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "choir/comm/mpi_communicator.hpp"
#include "choir/core/error.hpp"

namespace choir {

std::unique_ptr<Communicator> make_leading_group(const Communicator& all, int ranks) {
  CHOIR_CHECK(ranks >= 1 && ranks <= all.size(), "the first {} of {} ranks", ranks, all.size());
  MPI_Comm group = MPI_COMM_NULL;
  mpi_check(
      MPI_Comm_split(mpi_handle(all), all.rank() < ranks ? 0 : MPI_UNDEFINED, all.rank(), &group),
      "MPI_Comm_split", all.name());
  if (group == MPI_COMM_NULL) return nullptr;
  auto leading = make_mpi_communicator(group, fmt::format("first {}", ranks));
  MPI_Comm_free(&group);
  return leading;
}

void quiet_barrier(const Communicator& all, const std::function<void()>& look) {
  using namespace std::chrono_literals;
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Ibarrier(mpi_handle(all), &request), "MPI_Ibarrier", all.name());
  auto pause = 50us;
  for (int done = 0;;) {
    mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", all.name());
    if (done != 0) return;
    if (look) look();
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 2ms);
  }
}

}  // namespace choir
