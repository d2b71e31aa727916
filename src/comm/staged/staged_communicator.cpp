#include "src/comm/staged/staged_communicator.hpp"

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/comm/staged/staging_queue.hpp"

namespace choir {
namespace {

using Kind = CommCall;
using Work = StagedJobs::Work;

constexpr int kBlockTag = StagedWorker::kBlockTag;

class StagedCommunicator final : public QueuedCommunicator {
 public:
  StagedCommunicator(Communicator& host, Device& device, const std::string& name,
                     const StagedOptions& options)
      : QueuedCommunicator(name, host.rank(), host.size()),
        host_(host),
        device_(device),
        compute_(device),
        options_(options) {
    if (size() == 1) return;
    identify(derived_id(host, name));
    jobs_ = std::make_unique<StagedJobs>(
        std::make_shared<StagedWorker>(host.duplicate(name + " (staging)"), device,
                                       options.slot_bytes),
        device, fmt::format("{} (rank {} of {})", name, rank(), size()),
        options.threaded && mpi_serves_threads(), traffic_);
  }

  const char* transport() const override { return "staged"; }
  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    return std::make_unique<DeviceBlock>(device_, bytes);
  }

  void do_broadcast(void* data, std::size_t bytes, int root) override {
    start({.kind = Kind::broadcast, .data = data, .count = bytes, .peer = root}, bytes).wait();
  }
  void do_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) override {
    start({.kind = Kind::reduce,
           .data = data,
           .count = count,
           .dtype = dtype,
           .op = op,
           .peer = root},
          count * size_of(dtype))
        .wait();
  }
  void do_scatter(const void* source, const std::int64_t* counts, const std::int64_t* offsets,
                  void* target, std::size_t bytes, int root) override {
    start({.kind = Kind::scatter,
           .data = target,
           .source = source,
           .count = bytes,
           .peer = root,
           .counts = counts,
           .offsets = offsets},
          bytes)
        .wait();
    if (rank() == root) compute_.copy(target, at(source, own(offsets)), bytes);
  }
  void do_gather(const void* source, std::size_t bytes, void* target, const std::int64_t* counts,
                 const std::int64_t* offsets, int root) override {
    start({.kind = Kind::gather,
           .data = target,
           .source = source,
           .count = bytes,
           .peer = root,
           .counts = counts,
           .offsets = offsets},
          bytes)
        .wait();
    if (rank() == root) compute_.copy(at(target, own(offsets)), source, bytes);
  }
  void do_all_to_all(const void* source, void* target, std::size_t bytes) override {
    start({.kind = Kind::all_to_all, .data = target, .source = source, .count = bytes},
          bytes * ranks())
        .wait();
    if (size() == 1) compute_.copy(target, source, bytes);
  }
  void do_send(const void* data, std::size_t bytes, int to, int tag) override {
    check_tag(tag);
    start({.kind = Kind::send, .source = data, .count = bytes, .peer = to, .tag = tag}, bytes)
        .wait();
  }
  void do_receive(void* data, std::size_t bytes, int from, int tag) override {
    check_tag(tag);
    start({.kind = Kind::receive, .data = data, .count = bytes, .peer = from, .tag = tag}, bytes)
        .wait();
  }
  void do_barrier() override { start({.kind = Kind::barrier}, 0).wait(); }

  CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                   Summation order) override {
    return start({.kind = Kind::all_reduce,
                  .data = data,
                  .count = count,
                  .dtype = dtype,
                  .op = op,
                  .order = order},
                 count * size_of(dtype));
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation order) override {
    return start({.kind = Kind::reduce_scatter,
                  .data = data,
                  .count = count,
                  .dtype = dtype,
                  .op = op,
                  .order = order},
                 count * size_of(dtype) * ranks());
  }
  CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) override {
    return start({.kind = Kind::all_gather, .data = data, .count = count, .dtype = dtype},
                 count * size_of(dtype) * ranks());
  }

  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    const std::size_t bytes = check_exchange(messages, kBlockTag);
    return start({.kind = Kind::exchange, .messages = messages}, bytes);
  }

  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    return std::make_unique<StagedCommunicator>(host_, device_, name, options_);
  }

 private:
  std::size_t own(const std::int64_t* offsets) const {
    return static_cast<std::size_t>(offsets[rank()]);
  }
  void check_tag(int tag) const {
    CHOIR_CHECK(tag >= 0 && tag < kBlockTag, "tag {} on {}", tag, name());
  }
  ExchangeRequest& start(const Work& work, std::size_t bytes) {
    check_rank(work.peer);
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
    if (size() == 1) return done_;
    return jobs_->start(work);
  }

  Communicator& host_;
  Device& device_;
  Stream compute_;
  StagedOptions options_;
  DoneRequest done_;
  std::unique_ptr<StagedJobs> jobs_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, Device& device,
                                                       const std::string& name,
                                                       const StagedOptions& options) {
  return std::make_unique<StagedCommunicator>(host, device, name, options);
}

}  // namespace choir
