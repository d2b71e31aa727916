#include "choir/train/log/start_record.hpp"

#include <omp.h>

#include <nlohmann/json.hpp>

#include "choir/comm/gather_text.hpp"
#include "choir/comm/mpi_session.hpp"
#include "choir/core/clock.hpp"
#include "choir/train/engine/build_info.hpp"

namespace choir {

using nlohmann::ordered_json;

std::string start_record(const StartFacts& facts, Mesh& mesh, const StepPlan& plan) {
  const ordered_json mine{{"node", mesh.node_index()},
                          {"host", host_name()},
                          {"threads", omp_get_max_threads()},
                          {"planned", plan.memory.total()}};
  const std::vector<std::string> ranks = gather_texts(mesh.world(), mine.dump());
  if (mesh.rank() != 0) return {};
  const Layout& layout = mesh.layout();
  ordered_json record{{"event", "start"},
                      {"step", facts.step},
                      {"time", timestamp()},
                      {"device", facts.device},
                      {"parameters", facts.parameters},
                      {"resident_before", facts.resident_before},
                      {"flops", plan.flops}};
  record["layout"] = {{"order", layout.order()}};
  for (const Axis axis : {Axis::tensor, Axis::context, Axis::data, Axis::pipeline})
    record["layout"][std::string(short_name(axis))] = layout.size(axis);
  for (const std::string& rank : ranks) record["ranks"].push_back(ordered_json::parse(rank));
  record["memory"] = ordered_json::array();
  for (const MemoryPlan::Entry& entry : plan.memory.entries)
    record["memory"].push_back({{"name", entry.name},
                                {"bytes", entry.bytes},
                                {"place", name_of(entry.place)},
                                {"shared", entry.shared}});
  record["provenance"] = ordered_json::parse(build_provenance());
  return record.dump();
}

}  // namespace choir
