// choir average RUN --last K|--steps LIST --out RUN2
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "choir/comm/mesh/mesh.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/run/averaged_run.hpp"

namespace choir {
namespace {

/// Parses "100,200,300". Returns a message about a list that is not one of two or more different
/// steps.
std::string parse_steps(const std::string& text, std::vector<std::int64_t>& steps) {
  steps.clear();
  for (const std::string& word : split(text, ',')) {
    std::int64_t step = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), step);
    if (error != std::errc() || stop != word.data() + word.size() || step < 0)
      return fmt::format("'{}' is not a step; legal: steps with commas, 100,200,300", word);
    steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  if (std::adjacent_find(steps.begin(), steps.end()) != steps.end())
    return fmt::format("{} names a step twice", text);
  return steps.size() < 2 ? "a mean needs two steps or more" : "";
}

int average(MpiSession& session, const AverageRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  const AverageReport report = average_checkpoints(mesh->world(), request);
  if (session.rank() != 0) return 0;
  for (const std::string& line : report.skipped)
    print_safely("passed over {}\n", printable_name(line));
  std::vector<std::string> steps;
  for (const std::int64_t step : report.steps) steps.push_back(std::to_string(step));
  print_safely("mean of {}: steps {}\n", counted(steps.size(), "checkpoint"), join(steps, ", "));
  print_safely("tensors={} elements={} bytes={}\n{}\n", report.tensors, report.elements,
               report.bytes, printable_name(report.checkpoint));
  return 0;
}

}  // namespace

int average_command(const Invocation& call) {
  CommandLine app(
      "Averages the weights of checkpoints of one run into a new run, which generates, evaluates, "
      "is exported and trained like any other. The mean is computed in double precision, chunk by "
      "chunk, by all ranks.",
      "choir average");
  AverageRequest request{.families = &call.families};
  std::string steps;
  app.add_option("run", request.run, "run directory").required();
  auto last =
      app.add_option("--last", request.last, "number of newest checkpoints").within(2, 1000);
  auto chosen =
      app.add_option("--steps", steps, "steps of the checkpoints instead, such as 800,900,1000")
          .checked([&](const std::string& text) { return parse_steps(text, request.steps); });
  last.excludes(chosen);
  app.add_option("--out", request.out, "run directory to create").required();
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) {
    if (request.last == 0 && request.steps.empty()) {
      DeckError error("choir average: neither --last nor --steps is given",
                      "--last 5 averages the five newest checkpoints");
      error.set_agreed_ranks(session.size());  // all ranks have the same arguments
      throw error;
    }
    return average(session, request);
  });
}

}  // namespace choir
