#include "src/data/text/mpi_group.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "choir/comm/flight_log.hpp"
#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

constexpr int kImpatientTests = 20;
constexpr std::chrono::microseconds kShortNap{20}, kLongNap{100};

// Returns an id that is the same on all ranks of the group and differs from those of other groups
// and of Communicators, whose ids do not use the highest bit. The first rank of the group counts.
std::uint64_t agreed_id(MPI_Comm group) {
  static std::atomic<std::uint32_t> made{0};
  int world_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  std::uint64_t id = std::uint64_t{1} << 63 | static_cast<std::uint64_t>(world_rank) << 32 | ++made;
  mpi_check(MPI_Bcast(&id, 1, MPI_UINT64_T, 0, group), "MPI_Bcast");
  return id;
}

/// Records a wait for other ranks while it lasts, for the flight recorder.
class RecordedWait {
 public:
  RecordedWait(const SharedName& name, int place, const CallRecord& call)
      : record_(FlightRecorder::of_process().begin(name, place, call)) {}
  ~RecordedWait() {
    const bool thrown = std::uncaught_exceptions() > unwinding_;
    FlightRecorder::of_process().change(record_, thrown ? CallState::failed : CallState::done,
                                        now_seconds());
  }
  RecordedWait(const RecordedWait&) = delete;
  RecordedWait& operator=(const RecordedWait&) = delete;

 private:
  std::uint64_t record_;
  int unwinding_ = std::uncaught_exceptions();
};

}  // namespace

MpiGroup::MpiGroup(Communicator& comm) : comm_(comm), rank_(comm.rank()), size_(comm.size()) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  CHOIR_CHECK(initialised != 0, "readers need MPI");
  CHOIR_CHECK(size_ == 1 || std::string_view(comm.transport()) != "null",
              "a null communicator of {} ranks reads nothing", size_);
  // Without other ranks, or with simulated ones, the group is this process.
  const bool alone = std::string_view(comm.transport()) == "null" || rehearsal_of(comm) != nullptr;
  mpi_check(MPI_Comm_dup(alone ? MPI_COMM_SELF : mpi_handle(comm), &all_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
  if (size_ == 1) return;
  if (rehearsal_of(comm) != nullptr) return;
  id_ = agreed_id(all_);
  const std::string shown = "reader of " + comm.name();
  name_.set(shown);
  place_ = FlightRecorder::of_process().join(shown, id_, rank_, size_);
}

MpiGroup::~MpiGroup() {
  if (size_ > 1) FlightRecorder::of_process().leave(place_);
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

void MpiGroup::broadcast(void* data, std::size_t bytes, int root) const {
  if (rehearsal_of(comm_) != nullptr) return comm_.broadcast(data, bytes, root);
  CHOIR_CHECK(bytes <= std::numeric_limits<int>::max(), "{} bytes in one message", bytes);
  MPI_Request request;
  mpi_check(MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, root, all_, &request), "MPI_Ibcast",
            comm_.name());
  wait(request);
}

void MpiGroup::sum(std::span<std::int64_t> values) {
  if (rehearsal_of(comm_) != nullptr)
    return comm_.all_reduce(values.data(), values.size(), DType::i64, ReduceOp::sum);
  if (size_ > 1) reduce(values, MPI_SUM);
}

void MpiGroup::wait(MPI_Request& request) const {
  int done = 0;
  for (int tests = 0; done == 0; ++tests) {
    mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    if (abandoned_) throw CommError("reading was abandoned while waiting for other ranks");
    if (tests >= kImpatientTests)
      std::this_thread::sleep_for(tests < 4 * kImpatientTests ? kShortNap : kLongNap);
    else
      std::this_thread::yield();
  }
}

void MpiGroup::reduce(std::span<std::int64_t> values, MPI_Op op) {
  MPI_Request request;
  const RecordedWait recorded(name_, place_,
                              {.call = CommCall::all_reduce,
                               .state = CallState::waiting,
                               .group = id_,
                               .sequence = ++settled_,
                               .bytes = values.size_bytes(),
                               .start = now_seconds()});
  mpi_check(MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()),
                           MPI_INT64_T, op, all_, &request),
            "MPI_Iallreduce");
  wait(request);
}

void MpiGroup::settle(const std::exception_ptr& failure, std::span<std::int64_t> values) {
  if (size_ == 1) {
    if (failure) std::rethrow_exception(failure);
    return;
  }
  scratch_.assign(values.begin(), values.end());
  scratch_.push_back(failure ? 1 : 0);
  if (rehearsal_of(comm_) != nullptr) {
    // Ranks that do not read themselves receive the values of the first rank.
    comm_.broadcast(scratch_.data(), scratch_.size() * sizeof scratch_.front(), 0);
  } else {
    reduce(scratch_, MPI_MAX);
  }
  if (scratch_.back() != 0) {
    together(comm_, [&] {
      if (failure) std::rethrow_exception(failure);
    });
  }
  std::copy(scratch_.begin(), scratch_.end() - 1, values.begin());
}

}  // namespace choir
