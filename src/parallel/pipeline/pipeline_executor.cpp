#include "src/parallel/pipeline/pipeline_executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "choir/parallel/pipeline/schedule.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using Kind = ActionKind;

/// Fewer tags than any communicator has. Messages are matched by their order; the tag is a second
/// proof.
constexpr std::size_t kTags = 16384;

}  // namespace

Exchange exchange_for(DeviceKind device) {
  return device == DeviceKind::cuda ? Exchange::overlapped : Exchange::blocking;
}

PipelineExecutor::PipelineExecutor(const Schedule& schedule,
                                   std::span<Communicator* const> channels, const Options& options)
    : shape_(schedule.shape),
      exchange_(schedule.exchange),
      stage_(channels.front()->rank()),
      options_(options) {
  const Communicator& comm = *channels.front();
  for (Communicator* channel : channels) channels_.push_back({channel});
  CHOIR_CHECK(shape_.stages == 1 || std::ssize(channels) == std::max(1, schedule.channels),
              "{} communicators for {} channels", channels.size(), schedule.channels);
  CHOIR_CHECK(comm.size() == shape_.stages, "{} stages on the {} ranks of {}", shape_.stages,
              comm.size(), comm.name());
  if (!options_.validated) validate(schedule);
  actions_ = schedule.actions[static_cast<std::size_t>(stage_)];
  held_.resize(static_cast<std::size_t>(shape_.chunks) *
               static_cast<std::size_t>(shape_.micro_batches));
  plan_messages(schedule);
  if (options_.clock == nullptr) return;
  stream_ = std::make_unique<Stream>(*options_.clock);
  start_ = std::make_unique<Event>(*options_.clock);
  for (const Action& a : actions_) {
    stamps_.push_back(std::make_unique<Stamps>(*options_.clock));
    times_.push_back({a, 0, 0});
  }
}

void PipelineExecutor::plan_messages(const Schedule& schedule) {
  for (std::size_t k = 0; k < actions_.size(); ++k) {
    const Action& a = actions_[k];
    if (!is_communication(a.kind)) continue;
    if (groups_.empty() || groups_.back().end <= k)
      groups_.push_back(
          {k, end_of_exchange(schedule, stage_, k), messages_.size(),
           static_cast<std::size_t>(channel_of(shape_, stage_, a, schedule.channels))});
    const std::size_t group = groups_.size() - 1;
    if (a.kind == Kind::receive_activation) held(a).input_group = group;
    if (a.kind == Kind::receive_gradient) held(a).gradient_group = group;
    messages_.push_back({is_send(a.kind), nullptr, 0, peer_of(shape_, stage_, a),
                         static_cast<int>(message_of(shape_, stage_, a) % kTags)});
  }
}

PipelineExecutor::Held& PipelineExecutor::held(const Action& a, int chunks_on) {
  return held_[static_cast<std::size_t>((a.chunk + chunks_on) * shape_.micro_batches +
                                        a.micro_batch)];
}

Tensor& PipelineExecutor::carried(const Action& a) {
  switch (a.kind) {
    case Kind::send_activation:
      return held(a).output;
    case Kind::receive_activation:
      return held(a).input;
    case Kind::send_gradient:
      return held(a).input_gradient;
    default:
      return held(a).output_gradient;
  }
}

void PipelineExecutor::run(StageWork& work, std::string_view phase, double timeout_seconds) {
  phase_ = phase;
  timeout_ = timeout_seconds;
  posted_ = 0;
  for (Channel& channel : channels_) channel.posted = channel.completed = 0;
  running_ = true;
  if (start_) start_->record_time(*stream_);
  try {
    for (std::size_t k = 0; k < actions_.size();) {
      if (is_communication(actions_[k].kind)) {
        const std::size_t group = posted_;
        post(group, work);
        k = groups_[group].end;
      } else {
        compute(k++, work);
      }
    }
    for (Channel& channel : channels_)
      while (channel.busy()) retire(channel);
    running_ = false;
  } catch (const CommError& error) {
    CommError named(fmt::format("{}: {}", text_, error.what()), error.hint());
    named.set_agreed_ranks(error.agreed_ranks());
    throw named;
  }
}

void PipelineExecutor::post(std::size_t index, StageWork& work) {
  Group& group = groups_[index];
  Channel& channel = channels_[group.channel];
  while (channel.posted - channel.completed >= kOpenExchanges) retire(channel);
  for (std::size_t k = group.begin; k < group.end; ++k) {
    const Action& a = actions_[k];
    Tensor& tensor = carried(a);
    if (!is_send(a.kind))
      tensor = work.receive_buffer(a.micro_batch, a.chunk, a.kind == Kind::receive_gradient);
    Message& message = messages_[group.first_message + (k - group.begin)];
    message.data = tensor.data;
    message.bytes = tensor.bytes();
    stamp_begin(k);
  }
  tell(actions_[group.begin], true);
  group.received = false;
  group.request = &channel.communicator->start_exchange(
      {messages_.data() + group.first_message, group.end - group.begin});
  channel.group(channel.posted++) = index;
  ++posted_;
  for (std::size_t k = group.begin; k < group.end; ++k)
    if (is_send(actions_[k].kind)) stamp_end(k);
  if (exchange_ == Exchange::overlapped) return;
  for (std::size_t k = group.begin; k < group.end; ++k)
    if (!is_send(actions_[k].kind)) receive(group, k);
  if (exchange_ != Exchange::blocking) return;
  retire(channel);
  for (std::size_t k = group.begin; k < group.end; ++k) stamp_end(k);
}

void PipelineExecutor::receive(Group& group, std::size_t action) {
  if (group.received) return;
  tell(actions_[action], true);
  group.request->wait_received();
  group.received = true;
  for (std::size_t k = group.begin; k < group.end; ++k)
    if (!is_send(actions_[k].kind)) stamp_end(k);
}

void PipelineExecutor::retire(Channel& channel) {
  Group& group = groups_[channel.group(channel.completed++)];
  for (std::size_t k = group.begin; k < group.end; ++k)
    if (!is_send(actions_[k].kind)) receive(group, k);
  const auto end = actions_.begin() + static_cast<std::ptrdiff_t>(group.end);
  const auto send = std::find_if(actions_.begin() + static_cast<std::ptrdiff_t>(group.begin), end,
                                 [](const Action& a) { return is_send(a.kind); });
  if (send != end) tell(*send, true);
  group.request->wait();
  for (auto a = send; a != end; ++a)
    if (is_send(a->kind)) carried(*a).reset();
}

void PipelineExecutor::wait_for_input(const Action& a) {
  if (shape_.stages == 1 || a.kind == Kind::backward_weight) return;
  const Kind kind = a.kind == Kind::forward ? Kind::receive_activation : Kind::receive_gradient;
  const Action message{kind, a.micro_batch, a.chunk};
  if (peer_of(shape_, stage_, message) < 0) return;
  Group& group = groups_[a.kind == Kind::forward ? held(a).input_group : held(a).gradient_group];
  if (group.received) return;
  std::size_t k = group.begin;
  while (actions_[k].kind != kind || actions_[k].micro_batch != a.micro_batch ||
         actions_[k].chunk != a.chunk)
    ++k;
  receive(group, k);
}

void PipelineExecutor::progress() {
  for (Channel& channel : channels_)
    for (std::size_t n = channel.completed; n < channel.posted; ++n)
      groups_[channel.group(n)].request->test();
}

void PipelineExecutor::compute(std::size_t index, StageWork& work) {
  const Action& a = actions_[index];
  wait_for_input(a);
  progress();
  tell(a, false);
  stamp_begin(index);
  Tensor result = perform(a, work);
  stamp_end(index);
  if (a.kind != Kind::backward_weight) hand_over(a, std::move(result));
  progress();
}

Tensor PipelineExecutor::perform(const Action& a, StageWork& work) {
  switch (a.kind) {
    case Kind::forward:
      return work.forward(a.micro_batch, a.chunk, std::move(held(a).input));
    case Kind::backward_weight:
      work.backward_weight(a.micro_batch, a.chunk);
      return {};
    default:
      return work.backward(a.micro_batch, a.chunk, std::move(held(a).output_gradient),
                           a.kind == Kind::backward);
  }
}

void PipelineExecutor::hand_over(const Action& a, Tensor result) {
  const bool forward = a.kind == Kind::forward;
  const int taker = shape_.virtual_stage(stage_, a.chunk) + (forward ? 1 : -1);
  const bool taken = taker >= 0 && taker < shape_.virtual_stages();
  CHOIR_CHECK(taken != result.empty(), "stage {}: {} gave {} tensor", stage_, describe(a),
              taken ? "no" : "a");
  if (!taken) return;
  if (shape_.stages > 1)
    (forward ? held(a).output : held(a).input_gradient) = std::move(result);
  else if (forward)
    held(a, 1).input = std::move(result);
  else
    held(a, -1).output_gradient = std::move(result);
}

void PipelineExecutor::tell(const Action& a, bool waiting) {
  print_into(text_, "{}{}stage {} of {}, {}{} of micro-batch {}, chunk {}", phase_,
             phase_.empty() ? "" : ": ", stage_, shape_.stages, waiting ? "waiting for " : "",
             name_of(a.kind), a.micro_batch, a.chunk);
  if (options_.watchdog == nullptr) return;
  if (waiting)
    options_.watchdog->await(text_, timeout_);
  else
    options_.watchdog->beat(text_, timeout_);
}

void PipelineExecutor::stamp_begin(std::size_t action) {
  if (stream_) stamps_[action]->begin.record_time(*stream_);
}

void PipelineExecutor::stamp_end(std::size_t action) {
  if (stream_) stamps_[action]->end.record_time(*stream_);
}

std::span<const ActionTime> PipelineExecutor::times() {
  if (stream_) stream_->synchronize();
  for (std::size_t k = 0; k < times_.size(); ++k) {
    times_[k].begin = stamps_[k]->begin.seconds_since(*start_);
    times_[k].end = stamps_[k]->end.seconds_since(*start_);
  }
  return times_;
}

std::vector<ChunkCost> mean_costs(std::span<const ActionTime> times, int chunks) {
  struct Sum {
    double seconds = 0;
    int count = 0;
    double mean() const { return count > 0 ? seconds / count : 0; }
  };
  std::vector<std::array<Sum, kActionKinds>> sums(static_cast<std::size_t>(chunks));
  for (const ActionTime& t : times) {
    Sum& sum =
        sums[static_cast<std::size_t>(t.action.chunk)][static_cast<std::size_t>(t.action.kind)];
    sum.seconds += t.end - t.begin;
    ++sum.count;
  }
  std::vector<ChunkCost> costs;
  for (const auto& sum : sums) {
    const auto mean = [&](ActionKind kind) { return sum[static_cast<std::size_t>(kind)].mean(); };
    costs.push_back({.forward = mean(ActionKind::forward),
                     .backward = mean(ActionKind::backward),
                     .backward_input = mean(ActionKind::backward_input),
                     .backward_weight = mean(ActionKind::backward_weight)});
  }
  return costs;
}

std::vector<StageLoss> stage_losses(const Schedule& schedule, const std::vector<ChunkCost>& chunks,
                                    double makespan) {
  PipelineCosts costs = uniform_costs(schedule.shape, {});
  costs.chunks = chunks;
  Schedule without_waits = schedule;  // of messages for each other
  without_waits.channels = 0;
  const Simulation free = simulate(without_waits, costs);
  std::vector<StageLoss> losses;
  for (std::size_t s = 0; s < free.busy.size(); ++s)
    losses.push_back(
        {.busy = free.busy[s], .bubble = free.idle(s), .exposed = makespan - free.makespan});
  return losses;
}

}  // namespace choir
