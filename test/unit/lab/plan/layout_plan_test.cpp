#include "src/lab/plan/layout_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "src/device/cuda.hpp"
#include "src/device/null_device.hpp"
#include "src/lab/plan/plan_report.hpp"
#include "src/run/run_setup.hpp"
#include "src/train/loop/save_schedule.hpp"
#include "test/unit/lab/plan/plan_case.hpp"

namespace choir {
namespace {

using test::kPlenty;
using test::plan_case;
using test::variants;

/// Value and two moments of the 40 parameters of three layers.
constexpr std::size_t kStoredTensors = 3 * 40;
constexpr const char* kSnapshotEntry = "checkpoint snapshot";

/// Plans every rank of the layout separately.
void expect_roles_stand_for_all(const PlanCase& request) {
  const LayoutPlan whole = plan_layout(request);
  const NullDevice device(request.target.kind);
  const EngineOptions options = engine_options(whole.deck, whole.batch);
  int planned = 0;
  for (int rank = 0; rank < request.ranks; ++rank) {
    WorkRecord work;
    StepPlan own = plan_step(options, whole.layout, rank, request.ranks_per_node, true, &device,
                             false, request.calibration ? &work : nullptr);
    Coordinates at = whole.layout.coordinates(rank);
    const bool first = at[Axis::data] == 0;
    at[Axis::data] = 0;
    const auto role = std::find_if(whole.roles.begin(), whole.roles.end(),
                                   [&](const RolePlan& r) { return r.at == at; });
    ASSERT_NE(role, whole.roles.end()) << rank;
    EXPECT_TRUE(!first || work == role->work) << rank;
    // Data ranks store different pieces of a tensor, each of which begins on its own cache line.
    EXPECT_LE(own.snapshot_bytes, role->plan.snapshot_bytes + kStoredTensors * 64) << rank;
    own.snapshot_bytes = role->plan.snapshot_bytes;
    cuda::Card card;
    card.multiprocessors = request.target.multiprocessors;
    card.major = request.target.compute_major;
    if (request.target.kind == DeviceKind::cuda)
      add_nccl(own, *Mesh::planned(whole.layout, rank, request.ranks_per_node),
               device_transport_of(whole.deck), card);
    add_snapshot(own.memory, own);
    EXPECT_TRUE(same_memory_and_traffic(own, role->plan)) << rank;
    EXPECT_EQ(own.memory.to_string(), role->plan.memory.to_string()) << rank;
    // The data ranks share the squares of the norm (two FLOPs an element) chunk by chunk.
    const auto gradients = static_cast<double>(own.memory.bytes_of("gradients"));
    EXPECT_NEAR(own.flops, role->plan.flops, 2 * gradients / 4) << rank;
    EXPECT_NEAR(own.bytes, role->plan.bytes, gradients) << rank;
    ++planned;
  }
  EXPECT_EQ(planned, static_cast<int>(whole.roles.size()) * whole.ranks_of_role());
}

TEST(LayoutPlan, RolesStandForAllRanks) {
  const DeckVariants decks = variants({"train.global_batch_size=0", "train.grad_accum=2"});
  for (const char* tensor : {"parallel.tensor=1", "parallel.tensor=4", "parallel.tensor=8"})
    for (const char* order : {"parallel.order=tp-cp-dp-pp", "parallel.order=dp-pp-tp-cp"})
      expect_roles_stand_for_all(plan_case(decks, 64, 8, kPlenty, {tensor, order}));
  expect_roles_stand_for_all(
      plan_case(decks, 64, 8, kPlenty, {"parallel.tensor=8", "parallel.sequence=true"}));
  // If tensor ranks share the vocabulary evenly, the inner ones are not planned one by one; if
  // times are predicted, the work of each is compared, too.
  for (const char* vocabulary : {"model.vocab_size=64", "model.vocab_size=71"}) {
    PlanCase timed = plan_case(decks, 16, 8, kPlenty, {"parallel.tensor=8", vocabulary});
    timed.target = find_target("h200", timed.deck);
    timed.calibration = std::make_shared<const Calibration>(assumed_calibration(timed.target));
    expect_roles_stand_for_all(timed);
  }
  PlanCase card = plan_case(decks, 64, 8, kPlenty, {"parallel.tensor=4"});
  card.target.kind = DeviceKind::cuda;
  expect_roles_stand_for_all(card);
  EXPECT_GT(plan_layout(card).fullest().plan.memory.bytes_of("NCCL, about"), std::size_t{1} << 28);
  card.deck.parallel.transport = RequestedTransport::staged;
  EXPECT_EQ(plan_layout(card).fullest().plan.memory.bytes_of("NCCL, about"), 0u);
}

// The comparison above can fail: another number of data ranks gives another plan.
TEST(LayoutPlan, RolesThatDifferAreSeen) {
  const DeckVariants decks = variants();
  const LayoutPlan a = plan_layout(plan_case(decks, 8, 8, kPlenty, {"parallel.tensor=2"}));
  const LayoutPlan b = plan_layout(plan_case(decks, 16, 8, kPlenty, {"parallel.tensor=2"}));
  EXPECT_FALSE(same_memory_and_traffic(a.roles[0].plan, b.roles[0].plan));
  EXPECT_EQ(group_roles(a).size(), 1u);
}

TEST(LayoutPlan, SumsOverAllRanks) {
  const LayoutPlan plan = plan_layout(plan_case(variants(), 12, 4, kPlenty, {"parallel.tensor=4"}));
  EXPECT_EQ(plan.roles.size(), 4u);
  EXPECT_EQ(plan.ranks_of_role(), 3);
  EXPECT_EQ(plan.batch.accum, 192 / (2 * 3));
  double flops = 0, bytes = 0;
  for (int rank = 0; rank < 12; ++rank) {
    const StepPlan& role = plan.roles[static_cast<std::size_t>(rank % 4)].plan;
    flops += role.flops;
    bytes += role.traffic[static_cast<std::size_t>(Axis::tensor)].bytes;
  }
  EXPECT_DOUBLE_EQ(plan.flops(), flops);
  EXPECT_DOUBLE_EQ(plan.traffic()[static_cast<std::size_t>(Axis::tensor)].bytes, bytes);
  EXPECT_GT(bytes, 0);
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.bubble, 0);
}

// A short plan leaves out the memory that grows with the number of micro-batches: the slots of
// their losses, on cards the tokens of two steps, and nothing else.
TEST(LayoutPlan, OutlineIsAsLargeButForLossesAndTokens) {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    PlanCase request = plan_case(variants(), 4, 4, kPlenty, {"parallel.tensor=2"});
    request.target.kind = kind;
    const double exact = test::memory_of(plan_layout(request));
    const LayoutPlan outline = plan_layout(request, Detail::outline);
    EXPECT_EQ(outline.roles.size(), 2u);
    constexpr double kMicro = 48 - 2, kRanks = 2, kCells = 2 * 16;
    // A step in flight has a sum of losses and a number of targets for each micro-batch.
    const double steps = kind == DeviceKind::cuda ? 2 : 1;
    const double losses = steps * 2 * 8 * kMicro * kRanks;
    const double tokens = kind == DeviceKind::cuda ? 2 * kMicro * 2 * 4 * kCells : 0;
    EXPECT_GE(exact - test::memory_of(outline), losses + tokens);
    EXPECT_LE(exact - test::memory_of(outline), losses + tokens + 2 * kMicro * 64);
  }
}

TEST(LayoutPlan, RefusesWhatTheLayoutAndTheBatchRefuse) {
  EXPECT_THROW(plan_layout(plan_case(variants(), 3, 3, kPlenty, {"parallel.tensor=2"})), DeckError);
  EXPECT_THROW(plan_layout(plan_case(variants(), 5, 5, kPlenty)), DeckError);
}

// (p - 1) / (m + p - 1), interleaved (p - 1) / (v m + p - 1); and stages of 3 and 6 units one after
// the other, each of which is idle while the other works.
TEST(LayoutPlan, BubbleOfTheSchedule) {
  Deck deck = variants().with({});
  for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe}) {
    deck.parallel.schedule = schedule;
    EXPECT_NEAR(bubble_fraction(deck, 8, std::vector<double>(4, 5e12)), 3.0 / 11, 1e-12);
    EXPECT_NEAR(bubble_fraction(deck, 1, {3e9, 6e9}), 0.5, 1e-12);
    EXPECT_EQ(bubble_fraction(deck, 8, {5e12}), 0);
  }
  deck.train.recompute = Recompute::full;
  EXPECT_NEAR(bubble_fraction(deck, 8, std::vector<double>(4, 5e12)), 3.0 / 11, 1e-12);
  deck.train.recompute = Recompute::none;
  deck.parallel.schedule = ScheduleKind::interleaved;
  deck.parallel.virtual_stages = 2;
  EXPECT_NEAR(bubble_fraction(deck, 8, std::vector<double>(4, 5e12)), 3.0 / 19, 1e-12);
  deck.parallel.schedule = ScheduleKind::zb_h1;
  deck.parallel.virtual_stages = 1;
  // The idle time is (p - 1)(F + B - W) = 3 beside 24 of work, with F = B = W.
  EXPECT_NEAR(bubble_fraction(deck, 8, std::vector<double>(4, 5e12)), 3.0 / 27, 1e-12);
}

TEST(LayoutPlan, NodesMustBeFull) {
  require_nodes(64, 8);
  require_nodes(3, 8);
  require_nodes(8, 8);
  for (const int wrong : {0, -1, 24}) EXPECT_THROW(require_nodes(64, wrong), DeckError) << wrong;
  try {
    require_nodes(36, 8);
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_STREQ(error.what(), "36 ranks do not fill nodes of --gpus-per-node 8");
    EXPECT_EQ(error.hint(), "nearest legal: --gpus-per-node 6 or 9; or --ranks 32 or 40");
  }
}

/// Memory of one rank: everything but the snapshot, and the snapshot.
std::pair<double, double> parts_of(const LayoutPlan& plan) {
  const auto snapshot = static_cast<double>(plan.roles[0].plan.memory.bytes_of(kSnapshotEntry));
  return {plan.needs() - snapshot, snapshot};
}

// A rank on a processor has one memory for its state and the snapshot.
TEST(LayoutPlan, SnapshotsMustHaveRoom) {
  const DeckVariants decks = variants({"checkpoint.interval=5"});
  const auto with = [&](const char* async, double memory) {
    return plan_layout(plan_case(decks, 2, 2, memory, {async}));
  };
  const auto [rest, snapshot] = parts_of(with("checkpoint.async=true", kPlenty));
  // Half of 3 fp32 copies of the parameters, and less than one cache line of padding per tensor.
  const std::size_t floats =
      with("checkpoint.async=true", kPlenty).roles[0].plan.memory.bytes_of("parameters, master");
  EXPECT_NEAR(snapshot, 1.5 * static_cast<double>(floats), (kStoredTensors + 8) * 64);
  const double all = rest + snapshot;

  EXPECT_TRUE(with("checkpoint.async=true", all).fits());
  EXPECT_FALSE(with("checkpoint.async=true", all - 1).fits());

  EXPECT_FALSE(with("checkpoint.async=auto", all).waits_for_saves);
  const LayoutPlan waits = with("checkpoint.async=auto", all - 1);
  EXPECT_TRUE(waits.fits()) << "as train, it does without the copies";
  EXPECT_TRUE(waits.waits_for_saves);
  EXPECT_EQ(parts_of(waits).second, 0);
  EXPECT_FALSE(with("checkpoint.async=auto", rest - 1).fits());

  EXPECT_TRUE(with("checkpoint.async=false", rest).fits());
  EXPECT_FALSE(with("checkpoint.async=false", rest).waits_for_saves);
}

TEST(LayoutPlan, SnapshotsBesideACardAreHeldAgainstTheHost) {
  const DeckVariants decks = variants({"checkpoint.interval=5", "checkpoint.async=true"});
  PlanCase request = plan_case(decks, 2, 2, kPlenty);
  request.target.kind = DeviceKind::cuda;
  const LayoutPlan unknown = plan_layout(request);
  EXPECT_TRUE(unknown.fits());
  const double snapshot = unknown.host_needs();
  EXPECT_GT(snapshot, 0);
  EXPECT_EQ(snapshot, static_cast<double>(unknown.roles[0].plan.memory.bytes_of(kSnapshotEntry)));
  request.deck.checkpoint.async = AsyncSaves::never;
  EXPECT_EQ(unknown.needs(), plan_layout(request).needs()) << "the card has as much as without";
  request.deck.checkpoint.async = AsyncSaves::always;
  request.target.host_memory = 2 * snapshot;
  EXPECT_TRUE(plan_layout(request).fits());
  request.target.host_memory = 2 * snapshot - 2;
  EXPECT_FALSE(plan_layout(request).fits());
}

TEST(WrittenDeck, LeavesOutWhatItsOverridesMadeUseless) {
  const std::string text = R"({"data": {"train": ["x"]}, "optimizer": {"min_lr": 1e-5}})";
  const Deck deck = parse_deck(test::families(), text, "old.json", {"optimizer.schedule=constant"});
  const std::string written = written_deck(text, deck);
  EXPECT_EQ(written.find("min_lr"), std::string::npos) << written;
  EXPECT_NO_THROW(parse_deck(test::families(), written, "new.json", {}));
}

// The largest automatic chunk of the head that fits, on every rank alike; reproducible runs keep
// that of the model.
TEST(LayoutPlan, TheChunkOfTheHeadShrinksUntilThePlanFits) {
  const DeckVariants decks =
      variants({"model.vocab_size=128256", "model.n_layer=1", "model.block_size=4096",
                "train.global_batch_size=4", "eval.sample_tokens=0"});
  for (const char* tensor : {"parallel.tensor=1", "parallel.tensor=2"}) {
    const LayoutPlan plenty = plan_layout(plan_case(decks, 2, 2, kPlenty, {tensor}));
    ASSERT_EQ(plenty.head.rows, 1024);
    const double least = test::memory_of(plenty) - 0.6 * plenty.head.bytes;
    const LayoutPlan tight = plan_layout(plan_case(decks, 2, 2, least, {tensor}));
    EXPECT_TRUE(tight.fits());
    EXPECT_EQ(tight.head.rows, 256) << "512 save only half of the logits";
    EXPECT_NE(to_string(tight, {}).find("head: 256 of 8192 rows at a time"), std::string::npos);
    const LayoutPlan fixed =
        plan_layout(plan_case(decks, 2, 2, least, {tensor, "train.reproducible=true"}));
    EXPECT_FALSE(fixed.fits());
    EXPECT_EQ(fixed.head.rows, 1024);
    const LayoutPlan given =
        plan_layout(plan_case(decks, 2, 2, least, {tensor, "train.head_chunk=1024"}));
    EXPECT_FALSE(given.fits());
  }
}

}  // namespace
}  // namespace choir
