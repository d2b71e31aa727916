// Conversion of plans to JSON.

#include <fmt/core.h>

#include <array>
#include <map>

#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/build_info.hpp"
#include "src/core/json_value.hpp"
#include "src/lab/plan/plan_report.hpp"

namespace choir {
namespace {

using Json = nlohmann::ordered_json;

Json traffic_json(const StepTraffic& traffic) {
  Json json;
  for (std::size_t a = 0; a < kAxes; ++a)
    json[std::string(short_name(static_cast<Axis>(a)))] = {{"calls", traffic[a].calls},
                                                           {"bytes", traffic[a].bytes}};
  return json;
}

Json memory_json(const MemoryPlan& memory) {
  Json json = Json::array();
  for (const MemoryPlan::Entry& entry : memory.entries)
    json.push_back({{"name", entry.name},
                    {"bytes", entry.bytes},
                    {"shared", entry.shared},
                    {"place", name_of(entry.place)}});
  return json;
}

Json time_json(const LayoutPlan& plan) {
  if (!plan.time) return Json();
  const StepTime& time = *plan.time;
  Json exposed;
  for (std::size_t a = 0; a < kAxes; ++a)
    exposed[std::string(short_name(static_cast<Axis>(a)))] = time.exposed[a];
  return {{"step_seconds", time.seconds},
          {"units_per_second", plan.units_per_second()},
          {"compute_seconds", time.compute},
          {"update_seconds", time.update},
          {"idle_seconds", time.idle},
          {"hidden_seconds", time.hidden},
          {"exposed_seconds", std::move(exposed)},
          {"one_channel_seconds", time.one_channel},
          {"longest_calls", time.calls_most}};
}

/// The messages of a step by count and size.
Json calls_json(const WorkRecord& work) {
  constexpr std::array kNames{"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                              "message"};
  std::map<std::pair<std::string, CallWork>, std::int64_t> counts;
  for (const auto& [place, done] : work.places)
    for (const auto& [call, count] : done.calls)
      counts[{work.groups[static_cast<std::size_t>(call.group)].axis, call}] += count;
  Json json = Json::array();
  for (const auto& [key, count] : counts)
    json.push_back({{"axis", key.first},
                    {"call", kNames[static_cast<std::size_t>(key.second.kind)]},
                    {"bytes", key.second.bytes},
                    {"count", count}});
  return json;
}

/// The fields that a plan in outline also has.
Json head_json(const LayoutPlan& plan) {
  const Layout& layout = plan.layout;
  const ParallelSection& parallel = plan.deck.parallel;
  return {{"data", layout.size(Axis::data)},
          {"tensor", layout.size(Axis::tensor)},
          {"pipeline", layout.size(Axis::pipeline)},
          {"context", layout.size(Axis::context)},
          {"order", layout.order()},
          {"zero", parallel.zero},
          {"sequence", parallel.sequence},
          {"schedule", name_of(parallel.schedule)},
          {"recompute", name_of(plan.deck.train.recompute)},
          {"micro_batch_size", plan.batch.micro},
          {"grad_accum", plan.batch.accum},
          {"global_batch_size", plan.batch.global},
          {"memory_bytes", static_cast<std::int64_t>(plan.needs())},
          {"memory_limit", plan.memory_limit},
          {"host_memory_bytes", static_cast<std::int64_t>(plan.host_needs())},
          {"fits", plan.fits()},
          {"waits_for_saves", plan.waits_for_saves},
          {"head_rows", plan.head.rows},
          {"head_bytes", plan.head.bytes},
          {"bubble", plan.bubble},
          {"time", time_json(plan)}};
}

Json full_json(const LayoutPlan& plan) {
  Json json = head_json(plan);
  json["flops"] = plan.flops();
  json["traffic"] = traffic_json(plan.traffic());
  json["roles"] = Json::array();
  for (const RolePlan& role : plan.roles)
    json["roles"].push_back({{"first_rank", role.rank},
                             {"ranks", plan.ranks_of_role()},
                             {"stage", role.at[Axis::pipeline]},
                             {"tensor", role.at[Axis::tensor]},
                             {"context", role.at[Axis::context]},
                             {"memory", memory_json(role.plan.memory)},
                             {"memory_bytes", role.plan.memory.total()},
                             {"flops", role.plan.flops},
                             {"touched_bytes", role.plan.bytes},
                             {"traffic", traffic_json(role.plan.traffic)},
                             {"calls", calls_json(role.work)}});
  return json;
}

Json choice_json(const LayoutChoice& choice) {
  Json json = head_json(choice.plan);
  json["changes"] = choice.changes;
  json["reason"] = choice.reason;
  json["why"] = choice.why;
  return json;
}

}  // namespace

std::string plan_json(const LayoutPlan* plan, const LayoutSearch* search, const PlanCase& request) {
  Json json{{"target", request.target.name},
            {"ranks", request.ranks},
            {"ranks_per_node", request.ranks_per_node},
            {"calibration", request.calibration ? Json(request.calibration->name) : Json()},
            {"assumed_times", request.calibration && request.calibration->assumed},
            {"noise", request.calibration ? request.calibration->noise : ""}};
  json["layout"] = plan ? full_json(*plan) : Json();
  if (search) {
    json["choices"] = Json::array();
    for (const LayoutChoice& choice : search->fitting)
      json["choices"].push_back(choice_json(choice));
    json["further"] = search->further;
    json["too_large"] = search->too_large;
    json["closest"] = search->closest ? choice_json(*search->closest) : Json();
  }
  json["provenance"] = parsed_ordered_json(build_provenance(MpiSession::library_version()));
  return dumped(json, 2) + "\n";
}

}  // namespace choir
