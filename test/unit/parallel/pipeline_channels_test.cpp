// The simulator of schedules on channels against the executor: the calls that every stage really
// makes are recorded and then played on streams of device memory, which do one after the other what
// was queued on them. The player knows no schedule, only calls.
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "choir/core/philox.hpp"
#include "choir/device/device.hpp"
#include "test/support/exchange_only.hpp"
#include "test/support/pipeline_case.hpp"

namespace choir {
namespace {

using test::name_of_case;

/// A call of a stage: a computation on its main stream, or an exchange on the stream of a channel
/// that is posted, or awaited by the main stream.
struct StreamCall {
  enum class Kind { compute, post, wait } kind = Kind::compute;
  double seconds = 0;
  std::size_t channel = 0, exchange = 0;  ///< number of the exchange on its channel
  std::vector<Message> messages{};
};

/// A channel of a stage that records its exchanges.
class RecordingChannel final : public test::ExchangeOnly {
 public:
  RecordingChannel(int stage, int stages, std::size_t channel, std::vector<StreamCall>& calls)
      : ExchangeOnly("pp", stage, stages), channel_(channel), calls_(calls) {}

 private:
  struct Request final : ExchangeRequest {
    Request(RecordingChannel& of, std::size_t index) : owner(of), number(index) {}
    void do_wait() override { do_wait_received(); }
    void do_wait_received() override {
      owner.calls_.push_back(
          {.kind = StreamCall::Kind::wait, .channel = owner.channel_, .exchange = number});
    }
    bool do_test() override { return true; }
    RecordingChannel& owner;
    std::size_t number;
  };
  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    calls_.push_back({.kind = StreamCall::Kind::post,
                      .channel = channel_,
                      .exchange = requests_.size(),
                      .messages = {messages.begin(), messages.end()}});
    return requests_.emplace_back(*this, requests_.size());
  }

  std::size_t channel_;
  std::vector<StreamCall>& calls_;
  std::deque<Request> requests_;
};

double stage_duration(const PipelineCosts& costs, const PipelineShape& shape, int stage,
                      const Action& a) {
  const ChunkCost& cost =
      costs.chunks[static_cast<std::size_t>(shape.virtual_stage(stage, a.chunk))];
  return a.kind == ActionKind::forward          ? cost.forward
         : a.kind == ActionKind::backward       ? cost.backward
         : a.kind == ActionKind::backward_input ? cost.backward_input
                                                : cost.backward_weight;
}

std::vector<std::vector<StreamCall>> recorded_calls(const Schedule& schedule,
                                                    const PipelineCosts& costs) {
  const auto null = make_device(DeviceKind::null);
  std::vector<std::vector<StreamCall>> all(schedule.actions.size());
  for (int s = 0; s < schedule.shape.stages; ++s) {
    std::vector<StreamCall>& calls = all[static_cast<std::size_t>(s)];
    test::FakeStage stage(*null, schedule.shape, s, 8);
    stage.spend = [&](const Action& a) {
      calls.push_back({.seconds = stage_duration(costs, schedule.shape, s, a)});
    };
    std::deque<RecordingChannel> channels;
    std::vector<Communicator*> list;
    for (std::size_t c = 0; c < static_cast<std::size_t>(std::max(1, schedule.channels)); ++c)
      list.push_back(&channels.emplace_back(s, schedule.shape.stages, c, calls));
    PipelineExecutor(schedule, list, {}).run(stage);
    EXPECT_EQ(stage.complaint(schedule.kind == ScheduleKind::forward_only), "");
  }
  return all;
}

/// Plays recorded calls. A message takes a latency once the streams of both its ends have reached
/// it.
class Player {
 public:
  Player(const std::vector<std::vector<StreamCall>>& calls, double latency)
      : calls_(calls), latency_(latency), next_(calls.size(), 0), now_(calls.size(), 0.0) {}

  /// The time at which the last stage ends; -1 if they wait for each other forever.
  double makespan() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t s = 0; s < calls_.size(); ++s)
        while (advance(s)) progress = true;
      for (auto& [place, exchanges] : streams_)
        progress = begin_and_end(place, exchanges) || progress;
    }
    for (std::size_t s = 0; s < calls_.size(); ++s)
      if (next_[s] < calls_[s].size()) return -1;
    return *std::max_element(now_.begin(), now_.end());
  }

 private:
  struct Queued {
    const StreamCall* call;
    double posted, begin = -1, end = -1;
  };
  using Place = std::pair<std::size_t, std::size_t>;  // stage, channel

  bool advance(std::size_t s) {
    if (next_[s] == calls_[s].size()) return false;
    const StreamCall& call = calls_[s][next_[s]];
    std::vector<Queued>& stream = streams_[{s, call.channel}];
    if (call.kind == StreamCall::Kind::compute) now_[s] += call.seconds;
    if (call.kind == StreamCall::Kind::post) stream.push_back({&call, now_[s]});
    if (call.kind == StreamCall::Kind::wait) {
      if (stream[call.exchange].end < 0) return false;
      now_[s] = std::max(now_[s], stream[call.exchange].end);
    }
    ++next_[s];
    return true;
  }

  bool begin_and_end(const Place& place, std::vector<Queued>& stream) {
    const auto stage = static_cast<int>(place.first);
    bool progress = false;
    double free = 0;
    for (Queued& exchange : stream) {
      if (exchange.begin < 0) {
        exchange.begin = std::max(exchange.posted, free);
        for (const Message& m : exchange.call->messages)
          reached_[{place.second, m.send ? stage : m.peer, m.send ? m.peer : stage, m.tag}]
              .push_back(exchange.begin);
        progress = true;
      }
      if (exchange.end < 0) {
        double end = exchange.begin;
        for (const Message& m : exchange.call->messages) {
          const auto& ends =
              reached_[{place.second, m.send ? stage : m.peer, m.send ? m.peer : stage, m.tag}];
          if (ends.size() < 2) return progress;
          end = std::max(end, std::max(ends[0], ends[1]) + latency_);
        }
        exchange.end = end;
        progress = true;
      }
      free = exchange.end;
    }
    return progress;
  }

  const std::vector<std::vector<StreamCall>>& calls_;
  double latency_;
  std::vector<std::size_t> next_;
  std::vector<double> now_;
  std::map<Place, std::vector<Queued>> streams_;
  /// When the streams of sender and receiver reached a message of a channel: from, to, tag.
  std::map<std::tuple<std::size_t, int, int, int>, std::vector<double>> reached_;
};

// Sums of at most about 400 times below 10 in different orders: 400 * 4000 * 2^-53 < 1e-9.
constexpr double kPlayError = 1e-9;

TEST(PipelineChannels, TheExecutorTakesTheSimulatedTime) {
  const PhiloxKey key = philox_key(3, "durations");
  std::uint64_t draws = 0;
  const auto random = [&] { return 0.1 + uniform01(philox_at(key, draws++)[0]); };
  for (const int stages : {2, 3, 4, 5})
    test::each_run(stages, [&](ScheduleKind kind, const PipelineShape& shape) {
      for (const int channels : {1, 2, 4}) {
        Schedule schedule = make_schedule(kind, shape, Exchange::overlapped);
        schedule.channels = channels;
        validate(schedule);
        PipelineCosts costs = uniform_costs(shape, {}, {.latency = random()});
        for (ChunkCost& c : costs.chunks) c = {random(), random(), random(), random()};
        const double played =
            Player(recorded_calls(schedule, costs), costs.links[0].latency).makespan();
        EXPECT_NEAR(played, simulate(schedule, costs).makespan, kPlayError)
            << name_of_case(kind, shape) << ", " << channels << " channels";
      }
    });
}

TEST(PipelineChannels, EveryScheduleIsLegalOnThem) {
  test::each_shape([](ScheduleKind kind, const PipelineShape& shape) {
    for (const int channels : {2, 4}) {
      Schedule schedule = make_schedule(kind, shape, Exchange::overlapped);
      schedule.channels = channels;
      EXPECT_EQ(test::error_of([&] { validate(schedule); }), "") << name_of_case(kind, shape);
    }
  });
}

/// The makespan of interleaved 1F1B with messages of `share` of the forward of a stage, relative to
/// that of independent messages.
double slower_than_independent(const PipelineShape& shape, double share, int channels) {
  const double v = shape.chunks;
  const PipelineCosts costs =
      uniform_costs(shape, {1 / v, 2 / v, 1 / v, 1 / v}, {.bytes_per_second = 1}, share);
  Schedule schedule = make_schedule(ScheduleKind::interleaved, shape, Exchange::overlapped);
  const double independent = simulate(schedule, costs).makespan;
  schedule.channels = channels;
  return simulate(schedule, costs).makespan / independent;
}

// The share of a step that messages of 5 % of a forward lose by waiting for each other, as it was
// reckoned before the simulator knew channels: 4 and 12 % on one, 7 % instead of 12 on four.
TEST(PipelineChannels, SeparateKindsAndDirectionsLoseLess) {
  const PipelineShape two{8, 32, 2}, four{8, 32, 4};
  EXPECT_NEAR(slower_than_independent(two, 0.05, 1), 1.04, 0.006);
  EXPECT_NEAR(slower_than_independent(four, 0.05, 1), 1.12, 0.006);
  EXPECT_NEAR(slower_than_independent(four, 0.05, 4), 1.07, 0.006);
  for (const PipelineShape& shape : {two, four})
    EXPECT_LT(slower_than_independent(shape, 0.05, 4), slower_than_independent(shape, 0.05, 2));
}

}  // namespace
}  // namespace choir
