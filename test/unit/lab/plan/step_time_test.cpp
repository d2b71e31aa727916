#include "src/lab/plan/step_time.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "src/core/json_value.hpp"
#include "src/lab/calibrate/calibrate.hpp"
#include "src/lab/plan/layout_search.hpp"
#include "src/lab/plan/plan_report.hpp"
#include "test/unit/lab/plan/plan_case.hpp"

namespace choir {
namespace {

using test::kPlenty;
using test::plan_case;
using test::variants;

constexpr double kFlops = 1e10;    // FLOP/s of every product and attention
constexpr double kLatency = 1e-5;  // seconds of the smallest call between two ranks
constexpr int kMeasured = 2;       // numbers of ranks of the calls

double ring(CallKind kind, int n) {
  if (kind == CallKind::message) return 1;
  return (kind == CallKind::all_reduce ? 2.0 : 1.0) * (n - 1) / n;
}

/// An ideal machine: other ops are free, calls take a latency and the time of their bytes, nothing
/// overlaps.
std::shared_ptr<Calibration> plain_machine(double node_rate, double network_rate) {
  auto c = std::make_shared<Calibration>();
  c->name = "a machine", c->device = "cpu", c->description = "none";
  c->ranks = 8, c->ranks_per_node = 4;
  for (const std::int64_t extent : {16, 1024})
    c->products.push_back({DType::f32, false, true, extent, extent, extent,
                           2 * std::pow(static_cast<double>(extent), 3) / kFlops});
  for (const bool backward : {false, true})
    c->attention.push_back({DType::f32, backward, true, 64, 8, kFlops});
  c->streams.push_back({.precision = "fp32"});
  for (const bool across : {false, true})
    for (const CallKind kind : {CallKind::all_reduce, CallKind::reduce_scatter,
                                CallKind::all_gather, CallKind::all_to_all, CallKind::message})
      for (double bytes = 1; bytes < 1e12; bytes *= 2)
        c->calls.push_back(
            {across, false, kind, kMeasured, bytes,
             kLatency + ring(kind, kMeasured) * bytes / (across ? network_rate : node_rate)});
  return c;
}

LayoutPlan timed(int ranks, int ranks_per_node, const std::vector<std::string>& changes,
                 std::shared_ptr<const Calibration> machine) {
  PlanCase request = plan_case(variants(), ranks, ranks_per_node, kPlenty, changes);
  request.calibration = std::move(machine);
  return plan_layout(request);
}

// A call uses windows if its bytes are in memory of its communicator, otherwise MPI.
TEST(WorkJournal, ParametersAreInMemoryOfTheirCommunicatorActivationsAreNot) {
  const auto machine = plain_machine(1e9, 1e8);
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const LayoutPlan plan =
        timed(4, 2, {"parallel.tensor=2", fmt::format("parallel.zero={}", stage)}, machine);
    std::map<std::string, int> seen;
    for (const RolePlan& role : plan.roles)
      for (const auto& [place, work] : role.work.places)
        for (const auto& [call, count] : work.calls) {
          const std::string& axis = role.work.groups[static_cast<std::size_t>(call.group)].axis;
          if (call.bytes < 2048) continue;  // a norm, the losses and their targets
          ++seen[axis];
          EXPECT_EQ(call.window, axis == "dp") << axis << ", " << call.bytes << " bytes";
        }
    EXPECT_GT(seen["dp"], 0);
    EXPECT_GT(seen["tp"], 0);
  }
}

// The journal has the same entries as the counters of the same step, sorted.
TEST(WorkJournal, AddsUpToTheCountersOfTheStep) {
  const auto machine = plain_machine(1e9, 1e8);
  for (const std::vector<std::string>& changes :
       std::vector<std::vector<std::string>>{{"train.micro_batch_size=24"},
                                             {"parallel.tensor=2", "parallel.sequence=true"},
                                             {"parallel.context=2"},
                                             {"parallel.zero=3"},
                                             {"parallel.zero=1", "parallel.zero_group=2"},
                                             {"parallel.pipeline=2", "train.recompute=full"},
                                             {"parallel.pipeline=2", "parallel.schedule=zb-h1"}}) {
    SCOPED_TRACE(changes.front());
    const LayoutPlan plan = timed(4, 2, changes, machine);
    for (const RolePlan& role : plan.roles) {
      double flops = 0, bytes_of_calls = 0;
      std::int64_t calls = 0;
      for (const auto& [place, work] : role.work.places) {
        flops += work.other_flops;
        EXPECT_GE(work.other_flops, 0);
        EXPECT_GE(work.other_bytes, 0);
        for (const auto& [product, count] : work.products)
          flops += 2.0 * static_cast<double>(product.batch * product.m * product.n * product.k) *
                   static_cast<double>(count);
        for (const auto& [attention, count] : work.attention)
          flops += attention.flops * static_cast<double>(count);
        for (const auto& [call, count] : work.calls) {
          calls += count;
          if (call.kind != CallKind::message)
            bytes_of_calls += static_cast<double>(call.bytes) * static_cast<double>(count);
        }
      }
      EXPECT_NEAR(flops, role.plan.flops, 1e-9 * role.plan.flops);
      std::int64_t counted = 0;
      double counted_bytes = 0;
      for (std::size_t a = 0; a < kAxes; ++a) {
        if (plan.layout.size(static_cast<Axis>(a)) == 1) continue;
        counted += role.plan.traffic[a].calls;
        // Exchanges count both the sent and the received bytes.
        if (static_cast<Axis>(a) != Axis::pipeline) counted_bytes += role.plan.traffic[a].bytes;
      }
      EXPECT_EQ(calls, counted);
      if (plan.layout.size(Axis::pipeline) == 1) {
        EXPECT_NEAR(bytes_of_calls, counted_bytes, 1e-9 * counted_bytes);
      }
    }
  }
}

// One rank of a machine on which only products and attention take time: FLOPs over their rate.
TEST(StepTime, OfOneRankIsItsProducts) {
  const LayoutPlan plan = timed(1, 1, {"train.recompute=full"}, plain_machine(1e9, 1e9));
  double other = 0;
  for (const auto& [place, work] : plan.roles[0].work.places) other += work.other_flops;
  EXPECT_NEAR(plan.time->seconds, (plan.roles[0].plan.flops - other) / kFlops,
              1e-9 * plan.time->seconds);
  EXPECT_EQ(plan.time->exposed_seconds(), 0);
  EXPECT_EQ(plan.units, 192 * 16);
}

// Data ranks that differ from a single rank only in the calls along their axis: latency and bytes,
// by the closed form, from the traffic that the communicators counted.
TEST(StepTime, AddsTheCallsOfDataRanks) {
  constexpr double kRate = 1e8;
  for (const int ranks : {2, 4})
    for (const char* zero : {"parallel.zero=0", "parallel.zero=1"}) {
      SCOPED_TRACE(zero);
      const LayoutPlan plan = timed(ranks, ranks, {zero}, plain_machine(kRate, 1));
      const CommTraffic& traffic = plan.roles[0].plan.traffic[static_cast<std::size_t>(Axis::data)];
      double bytes = 0;  // bytes that a ring sends
      for (const auto& [place, work] : plan.roles[0].work.places)
        for (const auto& [call, count] : work.calls)
          bytes +=
              ring(call.kind, ranks) * static_cast<double>(call.bytes) * static_cast<double>(count);
      const double expected =
          static_cast<double>(traffic.calls) * kLatency * std::log2(ranks) + bytes / kRate;
      // Between two sizes the time is a straight line in logarithms; the sum of latency and bytes
      // is a little below it.
      EXPECT_NEAR(plan.time->exposed[static_cast<std::size_t>(Axis::data)], expected,
                  0.07 * expected);
      EXPECT_GT(expected, 0);
    }
}

TEST(StepTime, HidesWhatOverlapsAllows) {
  const std::vector<std::string> changes{"parallel.zero=0"};
  const auto machine = plain_machine(1e9, 1);
  const LayoutPlan seen = timed(2, 2, changes, machine);
  for (const double share : {0.5, 1.0}) {
    auto hiding = std::make_shared<Calibration>(*machine);
    hiding->overlaps.push_back({false, share});
    const LayoutPlan plan = timed(2, 2, changes, hiding);
    EXPECT_GT(plan.time->hidden, 0);
    EXPECT_NEAR(plan.time->seconds + plan.time->hidden, seen.time->seconds,
                1e-9 * seen.time->seconds);
  }
  auto network = std::make_shared<Calibration>(*machine);
  network->overlaps.push_back({true, 1});  // between nodes: of no use inside one
  EXPECT_EQ(timed(2, 2, changes, network).time->hidden, 0);
}

// The computation of ranks that wait for each other along an axis takes longer, but their messages
// do not; and a single rank waits for nobody.
TEST(StepTime, RanksThatWaitForEachOtherComputeLonger) {
  const auto machine = plain_machine(1e9, 1);
  auto waiting = std::make_shared<Calibration>(*machine);
  const std::string precision = waiting->streams[0].precision;
  waiting->waits = {{precision, Axis::tensor, 1.25}, {precision, Axis::data, 1.5}};
  for (const std::vector<std::string>& changes : std::vector<std::vector<std::string>>{
           {"parallel.zero=0"}, {"parallel.data=1", "parallel.tensor=2"}}) {
    SCOPED_TRACE(changes.front());
    const double factor = changes.size() == 1 ? 1.5 : 1.25;
    const LayoutPlan free = timed(2, 2, changes, machine), held = timed(2, 2, changes, waiting);
    EXPECT_GT(free.time->compute, 0);
    EXPECT_NEAR(held.time->compute, factor * free.time->compute, 1e-9 * held.time->compute);
    EXPECT_EQ(held.time->exposed_seconds(), free.time->exposed_seconds());
  }
  EXPECT_EQ(timed(1, 1, {}, waiting).time->seconds, timed(1, 1, {}, machine).time->seconds);
}

// Free messages leave the bubble of the schedule; slow ones add to it.
TEST(StepTime, SimulatesThePipeline) {
  const std::vector<std::string> changes{"parallel.pipeline=2", "train.micro_batch_size=12"};
  const LayoutPlan fast = timed(2, 2, changes, plain_machine(1e15, 1e15));
  EXPECT_NEAR(fast.bubble, plan_layout(plan_case(variants(), 2, 2, kPlenty, changes)).bubble, 0.02);
  EXPECT_GT(fast.time->idle, 0);
  const LayoutPlan slow = timed(2, 2, changes, plain_machine(1e6, 1e6));
  const double exposed = slow.time->exposed[static_cast<std::size_t>(Axis::pipeline)];
  EXPECT_NEAR(slow.time->seconds - exposed, fast.time->seconds, 0.1 * exposed);
  // 12 x 16 x 64 f32 numbers in each direction, 16 times; most of them wait for nothing else.
  const double all = 2 * 16 * (12 * 16 * 64 * 4) / 1e6;
  EXPECT_GT(exposed, 0.4 * all);
  EXPECT_LT(exposed, 1.6 * all);
}

TEST(MachineRates, InterpolateBetweenWhatWasMeasured) {
  Calibration c;
  const auto add = [&](std::int64_t m, double rate) {
    c.products.push_back(
        {DType::f32, false, true, m, 64, 64, 2.0 * static_cast<double>(m) * 64 * 64 / rate});
  };
  add(16, 1e9), add(64, 4e9), add(1024, 4e9);
  const auto rate = [&](std::int64_t m, std::int64_t n) {
    const ProductWork work{.transpose_b = true, .m = m, .n = n, .k = 64};
    return 2.0 * static_cast<double>(m * n) * 64 / MachineRates(c).product(work);
  };
  EXPECT_NEAR(rate(16, 64), 1e9, 1);
  EXPECT_NEAR(rate(32, 64), 2e9, 1);     // half way between the logarithms: 1, 2, 4
  EXPECT_NEAR(rate(4, 64), 1e9, 1);      // as at the border
  EXPECT_NEAR(rate(9999, 512), 4e9, 1);  // as at the border, because n was not varied
}

TEST(MachineRates, GroupsOnSeveralNodesReduceInThreeSteps) {
  const auto machine = plain_machine(4e9, 1e8);
  const MachineRates rates(*machine);
  const CallGroup group{.axis = "dp", .ranks = 8, .nodes = 2};
  const double bytes = 1 << 20;
  const CallWork reduce{.kind = CallKind::all_reduce, .bytes = 1 << 20};
  // Inside, 4 ranks: half of a reduction each way; between 2 nodes a quarter of the buffer.
  const double expected = 2 * (2 * kLatency + 0.75 * bytes / 4e9) + kLatency + bytes / 4 / 1e8;
  // The smallest measured call has one byte: it counts as the latency.
  const double one_byte = 2 / 4e9 + 1 / 1e8;
  EXPECT_NEAR(rates.call(group, reduce), expected, one_byte);
  EXPECT_EQ(rates.call({.axis = "tp", .ranks = 1, .nodes = 1}, reduce), 0);
}

// A slow link changes the order: only layouts that must cross it do so. Gradients are more than
// activations here, because of the vocabulary.
TEST(LayoutSearch, WithACalibrationTheFastestComesFirst) {
  const DeckVariants decks = variants({"model.n_layer=2", "model.vocab_size=8192",
                                       "model.tied=false", "train.global_batch_size=16"});
  PlanCase request = plan_case(decks, 8, 4, kPlenty);
  const auto across = [](const LayoutChoice& choice) {  // bytes along axes that span nodes
    const RolePlan& role = choice.plan.roles.front();
    double bytes = 0;
    for (const auto& [place, work] : role.work.places)
      for (const auto& [call, count] : work.calls)
        if (role.work.groups[static_cast<std::size_t>(call.group)].nodes > 1)
          bytes += static_cast<double>(call.bytes) * static_cast<double>(count);
    return bytes;
  };
  std::vector<LayoutChoice> winners;
  for (const double network : {1e12, 1e6}) {
    request.calibration = plain_machine(1e12, network);
    const LayoutSearch search = search_layouts(request, decks, 100);
    ASSERT_GT(search.fitting.size(), 3u);
    for (std::size_t i = 1; i < search.fitting.size(); ++i)
      EXPECT_GE(search.fitting[i - 1].plan.units_per_second(),
                search.fitting[i].plan.units_per_second());
    EXPECT_NE(search.fitting[0].why.find("faster than the next"), std::string::npos);
    winners.push_back(search.fitting[0]);
    EXPECT_NE(to_string(search, request).find("the fastest first"), std::string::npos);
  }
  EXPECT_GT(across(winners[0]), 4 * across(winners[1]));
}

TEST(Calibration, ComesBackFromItsFile) {
  Calibration c = *plain_machine(1e9, 1e8);
  c.updates.push_back({"fp32", 1e6, 1e-3});
  c.overlaps.push_back({true, -0.25});
  c.waits.push_back({"fp32", Axis::pipeline, 1.25});
  c.provenance = R"({"host": "a"})";
  const std::string text = to_json(c);
  EXPECT_EQ(to_json(calibration_of_json(text, "x.json")), text);
}

TEST(Calibration, RefusesWhatItIsNot) {
  const auto refused = [](const std::string& text, const std::string& because) {
    try {
      calibration_of_json(text, "x.json");
      ADD_FAILURE() << "took " << text.substr(0, 60);
    } catch (const DeckError& error) {
      EXPECT_NE(std::string(error.what()).find(because), std::string::npos) << error.what();
    }
  };
  const std::string good = to_json(*plain_machine(1e9, 1e8));
  refused("not JSON", "not valid JSON");
  refused(R"({"bench": "step"})", "not a calibration");
  refused(good.substr(0, good.size() / 2), "not valid JSON");
  const auto changed = [&](const std::function<void(nlohmann::ordered_json&)>& change) {
    auto json = parsed_ordered_json(good);
    change(json);
    return dumped(json);
  };
  refused(changed([](auto& json) { json["calls"][0]["seconds"] = 1e-9; }), "checksum");
  refused(changed([](auto& json) { json["version"] = 99; }), "version 99");
  Calibration wrong = *plain_machine(1e9, 1e8);
  wrong.calls[3].seconds = -1;
  refused(to_json(wrong), "calls[3]: \"seconds\" is not above 0");
  wrong = *plain_machine(1e9, 1e8);
  wrong.waits.push_back({"fp32", Axis::tensor, 0.9});
  refused(to_json(wrong), "waits[0]: \"factor\" is not 1 or more");
}

// Other work on the cores marks a calibration, and its file says so.
TEST(Calibration, NoiseIsMarked) {
  EXPECT_EQ(noise_text(0.04, 0.02, 0.2), "");
  EXPECT_NE(noise_text(0.5, 0, 0).find("for 50 % of the time"), std::string::npos);
  EXPECT_NE(noise_text(0, 0.04, 0).find("other virtual machines"), std::string::npos);
  EXPECT_NE(noise_text(0, 0, 0.5).find("differ by 50 %"), std::string::npos);
  EXPECT_NEAR(spread_of({{1, 1.5}, {2, 2.2, 2.1}, {4, 4}}), 0.1, 1e-12);
  EXPECT_EQ(spread_of({{1}, {2}}), 0);
  Calibration c = *plain_machine(1e9, 1e8);
  EXPECT_NE(to_json(c).find("\"noisy\": false"), std::string::npos);
  c.noise = noise_text(0.5, 0, 0);
  const std::string text = to_json(c);
  EXPECT_NE(text.find("\"noisy\": true"), std::string::npos);
  EXPECT_EQ(calibration_of_json(text, "x.json").noise, c.noise);
  EXPECT_NE(to_string(c).find("NOISY: "), std::string::npos);
}

TEST(Calibration, ContentionIsReadFromTheScheduler) {
  namespace fs = std::filesystem;
  const std::string root = (fs::path(::testing::TempDir()) / "choir_contention").string();
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  EXPECT_EQ(ContentionMeter(root).waited(1), 0);  // nothing is known
  write("/proc/self/task/7/schedstat", "5000000000 1000000000 3\n");
  write("/proc/self/task/8/schedstat", "0 0 0\n");
  write("/proc/stat", "cpu  100 0 0 100 0 0 0 0 0 0\n");
  const ContentionMeter meter(root);
  write("/proc/self/task/7/schedstat", "9000000000 2500000000 9\n");  // waited 1.5 s more
  write("/proc/stat", "cpu  150 0 0 120 0 0 0 30 0 0\n");
  EXPECT_DOUBLE_EQ(meter.waited(6), 0.25);
  EXPECT_DOUBLE_EQ(meter.stolen(), 0.3);
  fs::remove_all(root);
}

TEST(Calibration, IsUsedForWhatWasMeasured) {
  const DeckVariants decks = variants();
  const PlanCase request = plan_case(decks, 8, 4, kPlenty);
  Calibration c = *plain_machine(1e9, 1e8);
  EXPECT_NO_THROW(require_use(c, request.target, request.deck, 8, 4));
  PlanTarget card = request.target;
  card.kind = DeviceKind::cuda;
  EXPECT_THROW(require_use(c, card, request.deck, 8, 4), DeckError);
  EXPECT_THROW(require_use(c, request.target, decks.with({"train.precision=fp64"}), 8, 4),
               DeckError);
  std::erase_if(c.calls, [](const CallTime& call) { return call.across; });
  EXPECT_NO_THROW(require_use(c, request.target, request.deck, 4, 4));
  EXPECT_THROW(require_use(c, request.target, request.deck, 8, 4), DeckError);
  EXPECT_THROW(assumed_calibration(request.target), DeckError);
  EXPECT_TRUE(assumed_calibration(find_target("h200", request.deck)).assumed);
}

TEST(Calibration, OfAnotherNetwork) {
  Calibration scaled = *plain_machine(4e9, 1e8);
  scale_network(scaled, 0.25);
  const auto slower = plain_machine(4e9, 0.25e8);
  ASSERT_EQ(scaled.calls.size(), slower->calls.size());
  // The smallest call, of one byte, is taken as the latency.
  const double one_byte = 1 / 0.25e8;
  for (std::size_t i = 0; i < scaled.calls.size(); ++i)
    EXPECT_NEAR(scaled.calls[i].seconds, slower->calls[i].seconds, one_byte) << i;
  EXPECT_THROW(scale_network(scaled, 0), DeckError);
  EXPECT_THROW(scale_network(scaled, std::nan("")), DeckError);
  std::erase_if(scaled.calls, [](const CallTime& call) { return call.across; });
  EXPECT_THROW(scale_network(scaled, 2), DeckError);
}

// Phases that were computed from known times give these times back; a noisy one does not hide the
// others.
TEST(Calibrate, FitsTheTimesOfStreams) {
  std::vector<FittedPhase> phases;
  for (int i = 1; i <= 8; ++i) {
    FittedPhase p;
    p.parts = {.products = 1e-3 * i * i,
               .attention = 1e-4 * i,
               .bytes = 1e6 * (9 - i),
               .flops = 1e5 * (i % 3 + 1)};
    p.seconds =
        1.2 * p.parts.products + p.parts.attention + 2e-10 * p.parts.bytes + 5e-10 * p.parts.flops;
    phases.push_back(p);
  }
  const StreamTimes exact = fit_streams(phases);
  EXPECT_NEAR(exact.product_factor, 1.2, 1e-4);
  EXPECT_NEAR(exact.per_byte, 2e-10, 1e-13);
  EXPECT_NEAR(exact.per_flop, 5e-10, 2e-12);
  EXPECT_LT(exact.fit_error, 1e-4);
  phases[3].seconds *= 1.1;
  EXPECT_GT(fit_streams(phases).fit_error, 0.01);
}

TEST(Calibrate, LaysRanksOutInsideNodesFirst) {
  EXPECT_EQ(calibration_layout(8, 2).to_string(), Layout(4, 1, 2, 1).to_string());
  EXPECT_EQ(calibration_layout(2, 1).to_string(), Layout(2, 1, 1, 1).to_string());
  EXPECT_THROW(calibration_layout(5, 2), DeckError);
}

}  // namespace
}  // namespace choir
