#include "choir/models/fastconformer/planned_steps.hpp"

#include <fmt/core.h>

#include "choir/comm/agreement.hpp"
#include "choir/core/json_value.hpp"

namespace choir {

SpeechCursor PlannedSteps::cursor_of(const TrainingData::Position& from, std::string_view what,
                                     Mesh& mesh, Logger& log) const {
  if (from.step == 0) return sampler_->begin();
  // A damaged position is treated like one of other data.
  const auto json = json_unless_broken(from.more);
  if (json.is_object() &&
      json.value("order", nlohmann::json()) == fmt::format("{:016x}", sampler_->hash())) {
    std::vector<std::int64_t> integers;
    for (const nlohmann::json& n : json.value("cursor", nlohmann::json::array()))
      integers.push_back(n.is_number_integer() ? n.get<std::int64_t>() : -1);
    return SpeechCursor::of_integers(integers, sampler_->blend().pools());
  }
  if (mesh.rank() == 0)
    log.warn(
        "the data are not those of the checkpoint ({}, blend, buckets or seed differ): their order "
        "begins anew",
        what);
  return sampler_->begin();
}

void PlannedSteps::begin(const SpeechSampler& sampler, const TrainingData::Position& from,
                         std::int64_t micro_batches, std::string_view what, Mesh& mesh,
                         Logger& log) {
  sampler_ = &sampler;
  micro_batches_ = micro_batches;
  together(mesh.world(), [&] {
    begin_ = cursor_of(from, what, mesh, log);
    steps_.emplace(sampler, begin_, micro_batches);
  });
  first_ = next_ = from.step;
}

SpeechOrder PlannedSteps::order(const Sharding& sharding, std::int64_t per_rank) const {
  return {.from = begin_,
          .micro_batches = micro_batches_,
          .first = sharding.first_micro_batch(per_rank),
          .places = per_rank,
          .stride = sharding.micro_batch_stride()};
}

std::string PlannedSteps::position(std::int64_t step) const {
  const SpeechCursor* cursor = &begin_;
  if (step > first_) {
    const Planned& last = place(step - 1);
    CHOIR_CHECK(last.step == step - 1, "the position after step {} is forgotten", step);
    cursor = &last.after;
  }
  nlohmann::ordered_json json;
  json["order"] = fmt::format("{:016x}", sampler_->hash());
  json["cursor"] = cursor->to_integers();
  return dumped(json);
}

const StepContent& PlannedSteps::content(std::int64_t step, const Fill& fill) {
  for (; next_ <= step; ++next_) {
    steps_->next(step_);
    Planned& to = place(next_);
    to.step = next_;
    to.after = step_.after;
    to.content = {.samples = static_cast<double>(step_.rows.size()),
                  .targets = static_cast<double>(step_.targets)};
    fill(step_, to.content);
  }
  const Planned& found = place(step);
  CHOIR_CHECK(found.step == step, "the content of step {} is forgotten", step);
  return found.content;
}

}  // namespace choir
