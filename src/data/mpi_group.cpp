#include "src/data/mpi_group.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr int kImpatientTests = 20;
constexpr std::chrono::microseconds kShortNap{20}, kLongNap{100};

}  // namespace

MpiGroup::MpiGroup(Communicator& comm) : comm_(comm), rank_(comm.rank()), size_(comm.size()) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  CHOIR_CHECK(initialised != 0, "readers need MPI");
  CHOIR_CHECK(size_ == 1 || std::string_view(comm.transport()) != "null",
              "a null communicator of {} ranks reads nothing", size_);
  // A null communicator has no group; alone, this process is the group.
  const bool alone = size_ == 1 && std::string_view(comm.transport()) == "null";
  mpi_check(MPI_Comm_dup(alone ? MPI_COMM_SELF : mpi_handle(comm), &all_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
}

MpiGroup::~MpiGroup() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && !abandoned_) MPI_Comm_free(&all_);
}

MPI_Comm MpiGroup::split(int ranks, bool within_node) const {
  MPI_Comm node = MPI_COMM_NULL, part = MPI_COMM_NULL;
  if (within_node || ranks == 0)
    mpi_check(MPI_Comm_split_type(all_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
              "MPI_Comm_split_type");
  else
    mpi_check(MPI_Comm_dup(all_, &node), "MPI_Comm_dup");
  int here = 0;
  MPI_Comm_rank(node, &here);
  const int color = ranks == 0 ? 0 : here / ranks;
  mpi_check(MPI_Comm_split(node, color, here, &part), "MPI_Comm_split");
  MPI_Comm_free(&node);
  MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN);
  return part;
}

void MpiGroup::wait(MPI_Request& request) const {
  int done = 0;
  for (int tests = 0; done == 0; ++tests) {
    mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    if (abandoned_) throw CommError("reading was given up while waiting for other ranks");
    if (tests >= kImpatientTests)
      std::this_thread::sleep_for(tests < 4 * kImpatientTests ? kShortNap : kLongNap);
    else
      std::this_thread::yield();
  }
}

void MpiGroup::settle(const std::exception_ptr& failure, std::span<std::int64_t> values) {
  if (size_ == 1) {
    if (failure) std::rethrow_exception(failure);
    return;
  }
  scratch_.assign(values.begin(), values.end());
  scratch_.push_back(failure ? 1 : 0);
  MPI_Request request;
  mpi_check(MPI_Iallreduce(MPI_IN_PLACE, scratch_.data(), static_cast<int>(scratch_.size()),
                           MPI_INT64_T, MPI_MAX, all_, &request),
            "MPI_Iallreduce");
  wait(request);
  if (scratch_.back() != 0) {
    together(comm_, [&] {
      if (failure) std::rethrow_exception(failure);
    });
  }
  std::copy(scratch_.begin(), scratch_.end() - 1, values.begin());
}

}  // namespace choir
