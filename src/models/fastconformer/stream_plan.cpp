#include "choir/models/fastconformer/stream_plan.hpp"

#include <fmt/core.h>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {

StreamPlan measured_plan(ModelInstance& instance, double budget, const std::string& what) {
  MemoryPlan memory;
  instance.add_to(memory);
  if (static_cast<double>(memory.total()) > budget)
    throw DeckError(
        fmt::format("out of memory: {} needs {} with the parameters, but only {} are allowed", what,
                    format_bytes(static_cast<double>(memory.total())), format_bytes(budget)),
        "raise --memory, or divide the model with --tensor");
  return {.arena_bytes = instance.arena().peak(),
          .requests = instance.arena().requests(),
          .total_bytes = memory.total()};
}

}  // namespace choir
