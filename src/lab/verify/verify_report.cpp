#include "choir/lab/verify/verify_report.hpp"

#include <algorithm>
#include <cmath>
#include "choir/core/json_value.hpp"

#include "choir/core/clock.hpp"
#include "choir/core/plural.hpp"
#include "choir/train/step/run_setup.hpp"

namespace choir {
namespace {

std::string describe_batch(const Deck& deck) {
  if (!deck.family().fixed_shape())
    return fmt::format("{} micro-batches of random utterances a step, of unequal length and number",
                       deck.train.micro_batches);
  return fmt::format("{} sequences of random tokens a step, some of their targets ignored",
                     deck.train.global_batch_size);
}

std::string describe_tolerances(const Deck& deck, const ByQuantity<double>& tolerances) {
  std::string text;
  for (int q = 0; q < kQuantities; ++q) {
    const auto quantity = static_cast<Quantity>(q);
    text += fmt::format("{}{} {:.2g}", q == 0 ? "" : ", ", name_of(quantity), tolerances[quantity]);
  }
  const std::string measure =
      "max|a-b| relative to max(1, max|a|); for gradients and moments relative to max|a|, but at "
      "least 1/1000 of the largest of their kind";
  if (deck.train.precision == "fp64") return text + "\n           " + measure;
  return text + "\n           " + measure +
         fmt::format(
             "\n           4 x the distance of one rank in {} from one rank in fp64, at least the "
             "rounding of one number",
             deck.train.precision);
}

}  // namespace

std::string verify_header(const Deck& deck, const VerifyOptions& options, int ranks,
                          const std::string& layouts, const std::vector<std::string>& notes,
                          const ByQuantity<double>& tolerances) {
  const ModelConfig model = model_of(deck);
  std::string text = fmt::format(
      "verify     {}: every layout against one rank\n"
      "model      {}\n"
      "batch      {}\n"
      "steps      {}\n"
      "precision  {}\n"
      "tolerance  {}\n"
      "layouts    {}, on up to {} rank{}",
      deck.source, model.family().describe(model), describe_batch(deck), options.steps,
      deck.train.precision, describe_tolerances(deck, tolerances), layouts, ranks, plural(ranks));
  for (const std::string& note : notes) text += "\nnote       " + note;
  return text;
}

std::string to_string(const VerifyRow& row, std::size_t width) {
  const std::string text = row.failure.empty() ? fmt::format("{:8.1e} of {:.1e} in {}", row.error,
                                                             row.tolerance, row.where)
                                               : row.failure;
  return fmt::format("{:<{}}  {:<72}  {:6.2f} s  {}", row.layout.to_string(), width, text,
                     row.seconds, row.ok() ? "ok" : "FAIL");
}

std::string to_json(const VerifyRow& row) {
  nlohmann::ordered_json json;
  json["layout"] = row.layout.to_string();
  json["ranks"] = row.layout.ranks();
  // JSON has no infinity.
  json["error"] = std::isfinite(row.error) ? nlohmann::ordered_json(row.error) : nullptr;
  json["tolerance"] = row.tolerance;
  json["where"] = row.where;
  json["failure"] = row.failure;
  json["seconds"] = row.seconds;
  json["ok"] = row.ok();
  return dumped(json);
}

bool valid(const std::vector<VerifyRow>& rows) {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.ok(); });
}

std::string verdict(const std::vector<VerifyRow>& rows) {
  double seconds = 0;
  const VerifyRow* worst = nullptr;
  for (const VerifyRow& row : rows) {
    seconds += row.seconds;
    if (row.failure.empty() &&
        (worst == nullptr || row.error / row.tolerance > worst->error / worst->tolerance))
      worst = &row;
  }
  const auto failed =
      std::count_if(rows.begin(), rows.end(), [](const VerifyRow& row) { return !row.ok(); });
  const std::string count =
      failed == 0
          ? fmt::format("VALID: {} layouts train as one rank does", rows.size())
          : fmt::format("INVALID: {} of {} layouts differ from one rank", failed, rows.size());
  return count +
         (worst ? fmt::format(", largest error {:.1e} of {:.1e}", worst->error, worst->tolerance)
                : std::string()) +
         fmt::format(", {}", format_duration(seconds));
}

}  // namespace choir
