#pragma once
// Collectives on device memory, chunk by chunk: down into pinned memory, through the communicator
// of the host, and up again.
#include <memory>

#include "src/comm/staged/staged_jobs.hpp"
#include "src/comm/staged/staged_pipe.hpp"

namespace choir {

/// Runs each collective chunk by chunk through a StagedPipe.
class StagedWorker final : public StagedJobs::Worker {
 public:
  /// The tag of gather and scatter. The tags of messages are below it.
  static constexpr int kBlockTag = 29999;

  /// Borrows the device. `slot_bytes` is the pinned memory of each chunk in flight.
  StagedWorker(std::unique_ptr<Communicator> host, Device& device, std::size_t slot_bytes);
  void perform(const StagedJobs::Work& work, const Event& ready, Event& done) override;

 private:
  using Work = StagedJobs::Work;

  void dispatch(const Work& work, const Event& ready);
  std::size_t piece_limit(DType dtype, std::size_t blocks) const;
  void reduce(const Work& work);
  void reduce_scatter(const Work& work);
  void all_gather(const Work& work);
  void broadcast(const Work& work);
  void all_to_all(const Work& work);
  void send(const void* data, std::size_t bytes, int to, int tag);
  void receive(void* data, std::size_t bytes, int from, int tag);
  void gather(const Work& work);
  void scatter(const Work& work);
  template <class F>
  void for_blocks(const Work& work, const F& f) const;

  std::unique_ptr<Communicator> host_;
  std::size_t ranks_, mine_;
  StagedPipe pipe_;
  StagedExchange exchange_;
};

}  // namespace choir
