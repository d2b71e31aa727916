// Tests of the overlap of ring attention: how much is computed between the start of a hop and its
// wait. The results of the ring are tested with real ranks.
#include <gtest/gtest.h>

#include <deque>

#include "kernels/attention/attention.hpp"
#include "src/device/null_device.hpp"
#include "src/nn/axes/context_axis.hpp"
#include "test/support/exchange_only.hpp"

namespace choir {
namespace {

/// The neighbours of a rank on the null device. It remembers the FLOPs that had been queued when
/// each hop was started and awaited.
class WatchedRing final : public test::ExchangeOnly {
 public:
  struct Hop final : ExchangeRequest {
    Hop(const WorkCounter& counter, int of) : work(counter), tag(of), started(counter.flops) {}
    void do_wait() override { awaited = work.flops; }
    void do_wait_received() override { do_wait(); }
    bool do_test() override { return true; }
    const WorkCounter& work;
    int tag;
    double started, awaited = -1;
    bool hidden() const { return awaited > started; }
  };
  WatchedRing(const WorkCounter& work, int rank, int size)
      : ExchangeOnly("cp", rank, size), work_(work) {}
  std::vector<bool> hidden(int tag) const {
    std::vector<bool> list;
    for (const Hop& hop : hops_)
      if (hop.tag == tag) list.push_back(hop.hidden());
    return list;
  }

 private:
  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    return hops_.emplace_back(work_, messages.front().tag);
  }
  const WorkCounter& work_;
  std::deque<Hop> hops_;
};

// The last hop of the gradients brings them home: nothing is left to be computed.
TEST(RingAttention, HopsOfKeysAndOfGradientsAreHiddenByProducts) {
  constexpr int kKeys = 1, kGradients = 2;
  for (int rank = 0; rank < 4; ++rank) {
    NullDevice device;
    WorkCounter work;
    Arena arena(device, Arena::kUnbounded);
    WatchedRing ring(work, rank, 4);
    const ContextAxis context{&ring, {.mode = ContextMode::ring}};
    Pass pass(Stream(device, &work), arena, precision_of("bf16-mixed"), 1, {}, context);
    const Sequence sequence = share_of_sequences(2, 64, context);
    pass.begin(Mode::train, sequence, 0);
    const ops::AttentionProblem problem{.batch = 2,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .head_width = 16,
                                        .queries = sequence.run(0).tokens,
                                        .keys = sequence.run(0).tokens,
                                        .dtype = DType::bf16};
    const std::int64_t rows = sequence.rows();
    const Tensor qkv = pass.allocate({rows, 96}, "qkv"), out = pass.allocate({rows, 32}, "out"),
                 d_out = pass.allocate({rows, 32}, "out");
    const Tensor lse = pass.allocate_statistic({2, rows}, "lse");
    RingAttention(pass, problem).backward(qkv, out, d_out, lse);
    EXPECT_EQ(ring.hidden(kKeys), (std::vector<bool>{true, true, true})) << "rank " << rank;
    EXPECT_EQ(ring.hidden(kGradients), (std::vector<bool>{true, true, true, false}))
        << "rank " << rank;
  }
}

}  // namespace
}  // namespace choir
