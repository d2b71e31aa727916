#include <array>

#include "choir/core/error.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "src/parallel/pipeline/schedule_simulation.hpp"

namespace choir {
namespace {

using Kind = ActionKind;

/// The products that a stage must have once for every micro-batch and chunk.
enum Product {
  kOutput,
  kInputGradient,
  kWeightGradient,
  kOutputSent,
  kInputReceived,
  kGradientSent,
  kGradientReceived,
  kProducts
};

[[noreturn]] void refuse(const Schedule& schedule, int stage, const std::string& reason) {
  throw Error(ExitCode::other,
              fmt::format("schedule {} of {} stages, {} micro-batches, {} chunks: stage {}: {}",
                          name_of(schedule.kind), schedule.shape.stages,
                          schedule.shape.micro_batches, schedule.shape.chunks, stage, reason),
              "use a schedule from make_schedule() without changes");
}

std::vector<Product> products_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return {kOutput};
    case Kind::backward:
      return {kInputGradient, kWeightGradient};
    case Kind::backward_input:
      return {kInputGradient};
    case Kind::backward_weight:
      return {kWeightGradient};
    case Kind::send_activation:
      return {kOutputSent};
    case Kind::receive_activation:
      return {kInputReceived};
    case Kind::send_gradient:
      return {kGradientSent};
    case Kind::receive_gradient:
      return {kGradientReceived};
  }
  return {};
}

/// Checks one stage's list, action by action. All products of a chunk come in ascending order of
/// micro-batches, so their count identifies the next micro-batch.
class StageCheck {
 public:
  StageCheck(const Schedule& schedule, int stage)
      : schedule_(schedule),
        shape_(schedule.shape),
        stage_(stage),
        made_(static_cast<std::size_t>(shape_.chunks)) {}

  void run() {
    const ActionList& list = schedule_.actions[static_cast<std::size_t>(stage_)];
    for (std::size_t k = 0; k < list.size(); ++k) {
      check(list[k]);
      const bool joinable = is_communication(list[k].kind) && k + 1 < list.size() &&
                            is_communication(list[k + 1].kind);
      if (list[k].joined && !joinable)
        refuse_action(list[k], "is joined to what follows, but only communication can be");
    }
    for (int chunk = 0; chunk < shape_.chunks; ++chunk)
      for (int product = 0; product < kProducts; ++product) check_complete(chunk, product);
    check_peak(list);
  }

 private:
  int made(int chunk, int product) const {
    return made_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(product)];
  }
  [[noreturn]] void refuse_action(const Action& a, const std::string& reason) const {
    refuse(schedule_, stage_, describe(a) + " " + reason);
  }
  bool trains() const { return schedule_.kind != ScheduleKind::forward_only; }
  bool fits_kind(Kind kind) const {
    return trains() || kind == Kind::forward || kind == Kind::send_activation ||
           kind == Kind::receive_activation;
  }
  bool has_before(int chunk) const { return shape_.virtual_stage(stage_, chunk) > 0; }
  bool has_behind(int chunk) const {
    return shape_.virtual_stage(stage_, chunk) + 1 < shape_.virtual_stages();
  }

  bool belongs(int chunk, int product) const {
    switch (product) {
      case kOutput:
        return true;
      case kOutputSent:
        return shape_.stages > 1 && has_behind(chunk);
      case kInputReceived:
        return shape_.stages > 1 && has_before(chunk);
      case kGradientReceived:
        return trains() && shape_.stages > 1 && has_behind(chunk);
      case kGradientSent:
        return trains() && shape_.stages > 1 && has_before(chunk);
      default:
        return trains();
    }
  }

  void check(const Action& a) {
    if (a.chunk < 0 || a.chunk >= shape_.chunks || a.micro_batch < 0 ||
        a.micro_batch >= shape_.micro_batches)
      refuse_action(a, "is outside the schedule");
    for (const Product product : products_of(a.kind)) {
      int& count = made_[static_cast<std::size_t>(a.chunk)][product];
      if (!belongs(a.chunk, product))
        refuse_action(a, fits_kind(a.kind) ? "has no stage at the other end"
                                           : "is not part of a forward-only schedule");
      if (a.micro_batch < count) refuse_action(a, "comes twice");
      if (a.micro_batch > count)
        refuse_action(a, fmt::format("comes where micro-batch {} is due", count));
    }
    check_needs(a);
    for (const Product product : products_of(a.kind))
      ++made_[static_cast<std::size_t>(a.chunk)][product];
  }

  void check_needs(const Action& a) const {
    const auto need = [&](Product product, int chunk, const char* what) {
      if (made(chunk, product) <= a.micro_batch)
        refuse_action(a, fmt::format("comes before {}", what));
    };
    switch (a.kind) {
      case Kind::forward:
        if (belongs(a.chunk, kInputReceived))
          need(kInputReceived, a.chunk, "the receive of its input");
        else if (has_before(a.chunk))
          need(kOutput, a.chunk - 1, "the forward of the chunk before");
        break;
      case Kind::backward:
      case Kind::backward_input:
        need(kOutput, a.chunk, "its forward");
        if (belongs(a.chunk, kGradientReceived))
          need(kGradientReceived, a.chunk, "the receive of its gradient");
        else if (has_behind(a.chunk))
          need(kInputGradient, a.chunk + 1, "the backward of the chunk behind");
        break;
      case Kind::backward_weight:
        need(kInputGradient, a.chunk, "its backward_input");
        break;
      case Kind::send_activation:
        need(kOutput, a.chunk, "its forward");
        break;
      case Kind::send_gradient:
        need(kInputGradient, a.chunk, "its backward");
        break;
      case Kind::receive_activation:
      case Kind::receive_gradient:
        break;
    }
  }

  void check_complete(int chunk, int product) const {
    constexpr std::array<const char*, kProducts> kNames{
        "forward",         "backward or backward_input", "backward or backward_weight",
        "send_activation", "receive_activation",         "send_gradient",
        "receive_gradient"};
    if (belongs(chunk, product) && made(chunk, product) < shape_.micro_batches)
      refuse(schedule_, stage_,
             fmt::format("{} of micro-batch {}, chunk {} is missing",
                         kNames[static_cast<std::size_t>(product)], made(chunk, product), chunk));
  }

  void check_peak(const ActionList& list) const {
    if (!trains()) return;
    const int promised = promised_live(schedule_.kind, shape_, stage_);
    int live = 0;
    for (const Action& a : list) {
      if (a.kind == Kind::forward && ++live > promised)
        refuse_action(a, fmt::format("makes {} live activations, {} are promised", live, promised));
      if (a.kind == Kind::backward || a.kind == Kind::backward_weight) --live;
    }
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  int stage_;
  std::vector<std::array<int, kProducts>> made_;  // [chunks][products]
};

/// Checks an untagged channel: messages are received in the order in which they were sent.
void check_channel(const Schedule& schedule, int from, int to) {
  const auto messages = [&](int stage, int peer, bool send) {
    ActionList list;
    for (const Action& a : schedule.actions[static_cast<std::size_t>(stage)])
      if (is_communication(a.kind) && is_send(a.kind) == send &&
          peer_of(schedule.shape, stage, a) == peer)
        list.push_back(a);
    return list;
  };
  const ActionList sent = messages(from, to, true), received = messages(to, from, false);
  CHOIR_CHECK(sent.size() == received.size(), "stages {} and {}: {} sends, {} receives", from, to,
              sent.size(), received.size());
  for (std::size_t k = 0; k < sent.size(); ++k)
    if (message_of(schedule.shape, from, sent[k]) != message_of(schedule.shape, to, received[k]))
      refuse(schedule, to,
             fmt::format("{} takes message {} of stage {}, which is its {}", describe(received[k]),
                         k, from, describe(sent[k])));
}

}  // namespace

void validate(const Schedule& schedule) {
  const PipelineShape& shape = schedule.shape;
  if (shape.stages < 1 || schedule.actions.size() != static_cast<std::size_t>(shape.stages))
    throw Error(ExitCode::other,
                fmt::format("schedule {} of {} stages has {} lists of actions",
                            name_of(schedule.kind), shape.stages, schedule.actions.size()),
                "give one list for each stage");
  for (int stage = 0; stage < shape.stages; ++stage) StageCheck(schedule, stage).run();
  for (int stage = 0; stage < shape.stages && shape.stages > 1; ++stage) {
    const int next = (stage + 1) % shape.stages;
    check_channel(schedule, stage, next);
    check_channel(schedule, next, stage);
  }
  Schedule run = schedule;
  for (const Exchange exchange : {Exchange::blocking, Exchange::buffered}) {
    run.exchange = exchange;
    simulate(run, uniform_costs(shape, {}));
  }
}

}  // namespace choir
