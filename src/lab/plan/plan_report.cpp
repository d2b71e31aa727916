#include "src/lab/plan/plan_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "choir/models/family.hpp"
#include "choir/models/model.hpp"
#include "src/core/hints.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/run/layout_report.hpp"

namespace choir {
namespace {

/// The coordinates of the group along an axis.
std::set<int> places_of(const RoleGroup& group, Axis axis) {
  std::set<int> places;
  for (const RolePlan* role : group.roles) places.insert(role->at[axis]);
  return places;
}

/// "3", "0-7", "0, 2".
std::string list_text(const std::set<int>& numbers) {
  const int first = *numbers.begin(), last = *numbers.rbegin();
  if (first == last) return std::to_string(first);
  if (last - first + 1 == static_cast<int>(numbers.size()))
    return fmt::format("{}-{}", first, last);
  std::vector<std::string> texts;
  for (const int number : numbers) texts.push_back(std::to_string(number));
  return join(texts, ", ");
}

}  // namespace

bool same_memory_and_traffic(const StepPlan& a, const StepPlan& b) {
  const auto same_entry = [](const MemoryPlan::Entry& x, const MemoryPlan::Entry& y) {
    return x.name == y.name && x.bytes == y.bytes && x.shared == y.shared && x.place == y.place;
  };
  const auto same_traffic = [](const CommTraffic& x, const CommTraffic& y) {
    return x.calls == y.calls && x.bytes == y.bytes;
  };
  return std::equal(a.memory.entries.begin(), a.memory.entries.end(), b.memory.entries.begin(),
                    b.memory.entries.end(), same_entry) &&
         std::equal(a.traffic.begin(), a.traffic.end(), b.traffic.begin(), same_traffic) &&
         a.arena_bytes == b.arena_bytes;
}

std::vector<RoleGroup> group_roles(const LayoutPlan& plan) {
  std::vector<RoleGroup> groups;
  for (const RolePlan& role : plan.roles) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const RoleGroup& other) {
      return same_memory_and_traffic(other.roles.front()->plan, role.plan);
    });
    if (group == groups.end())
      groups.push_back({{&role}});
    else
      group->roles.push_back(&role);
  }
  return groups;
}

std::string work_of(const RoleGroup& group) {
  const auto range = [&](auto value, auto text) {
    double least = value(group.roles.front()->plan), most = least;
    for (const RolePlan* role : group.roles) {
      least = std::min(least, value(role->plan));
      most = std::max(most, value(role->plan));
    }
    const std::string high = text(most);
    return text(least) == high ? high : text(least) + " to " + high;
  };
  return fmt::format("work of one step: {} GFLOP, {} touched",
                     range([](const StepPlan& plan) { return plan.flops; },
                           [](double flops) { return fmt::format("{:.2f}", flops / 1e9); }),
                     range([](const StepPlan& plan) { return plan.bytes; }, format_bytes));
}

std::string describe(const RoleGroup& group, const LayoutPlan& plan) {
  if (group.roles.size() == plan.roles.size()) return "every rank";
  const std::size_t ranks = group.roles.size() * static_cast<std::size_t>(plan.ranks_of_role());
  std::vector<std::string> parts;
  std::size_t product = 1;
  for (const auto& [axis, name] :
       {std::pair{Axis::pipeline, "stage"}, std::pair{Axis::tensor, "tensor"},
        std::pair{Axis::context, "context"}})
    if (const int size = plan.layout.size(axis); size > 1) {
      const std::set<int> places = places_of(group, axis);
      product *= places.size();
      parts.push_back(fmt::format("{} {} of {}", name, list_text(places), size));
    }
  if (product == group.roles.size())
    return fmt::format("{} ({})", join(parts, ", "), counted(ranks, "rank"));
  std::set<int> first;  // the roles are not a product of coordinates
  for (const RolePlan* role : group.roles) first.insert(role->rank);
  return fmt::format("the roles of ranks {} ({})", list_text(first), counted(ranks, "rank"));
}

namespace {

double total_of(const LayoutPlan& plan) {
  return plan.needs();
}

/// True if layouts are ordered by predicted times: those of a disturbed calibration mean little.
bool is_timed(const PlanCase& request) {
  return request.calibration && request.calibration->noise.empty();
}

/// "77", or `little` for a part below half a percent.
std::string percent_text(const LayoutPlan& plan, const char* little) {
  const double percent = 100 * total_of(plan) / plan.memory_limit;
  return percent < 0.5 ? little : fmt::format("{:.0f}", percent);
}

/// "60.0 GiB of 77.5 GiB, 77 %".
std::string share_text(const LayoutPlan& plan) {
  return fmt::format("{} of {}, {} %", format_bytes(total_of(plan)),
                     format_bytes(plan.memory_limit), percent_text(plan, "less than 1"));
}

/// The host memory that a plan needs in addition to a GPU's.
std::string host_text(const LayoutPlan& plan) {
  const double needs = plan.host_needs();
  if (plan.on_host || needs == 0) return "";
  if (plan.host_limit == 0)
    return fmt::format("; and {} of host memory, not checked for this target", format_bytes(needs));
  return fmt::format("; and {} of {} of host memory, {:.0f} %", format_bytes(needs),
                     format_bytes(plan.host_limit), 100 * needs / plan.host_limit);
}

std::string rate_text(const LayoutPlan& plan) {
  const bool tokens = plan.deck.family().fixed_shape();
  return tokens ? format_count(std::llround(plan.units_per_second())) + " tokens/s"
                : fmt::format("{:.2f} micro-batches/s", plan.units_per_second());
}

/// The source of the predictions.
std::string clock_text(const Calibration& calibration) {
  return calibration.assumed
             ? fmt::format("an ASSUMPTION for {}, not measured", calibration.name)
             : fmt::format("the {}calibration of {}", calibration.noise.empty() ? "" : "NOISY ",
                           calibration.name);
}

/// `which` names the layout if the answer has several.
std::string prediction_text(const LayoutPlan& plan, const std::string& which = {}) {
  if (!plan.time) return "";
  const StepTime& time = *plan.time;
  std::string text =
      wrap(fmt::format("predicted step{}: {}, {} ({:.1f} % exposed messages, bubble {:.1f} %)",
                       which, to_string(time), rate_text(plan),
                       100 * time.exposed_seconds() / time.seconds, 100 * plan.bubble),
           100, 2);
  if (!time.calls_most.empty()) text += fmt::format("  longest messages: {}\n", time.calls_most);
  return text;
}

constexpr const char* kWaits =
    "  no room for a copy of the state: training will wait for its saves (checkpoint.async)\n";

std::string batch_text(const LayoutPlan& plan) {
  if (!plan.deck.family().fixed_shape())
    return fmt::format("{}, {} on each of {}", counted(plan.batch.global, "micro-batch"),
                       plan.batch.accum, counted(plan.batch.data_parallel, "rank"));
  return fmt::format("{} = {} x {} x {}", counted(plan.batch.global, "sequence"),
                     counted(plan.batch.micro, "sequence"),
                     counted(plan.batch.accum, "micro-batch"),
                     counted(plan.batch.data_parallel, "rank"));
}

std::string axes_text(const LayoutPlan& plan) {
  std::string text;
  const StepTraffic all = plan.traffic();
  for (std::size_t a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    if (plan.layout.size(axis) == 1) continue;
    double least = plan.roles.front().plan.traffic[a].bytes, most = least;
    for (const RolePlan& role : plan.roles) {
      least = std::min(least, role.plan.traffic[a].bytes);
      most = std::max(most, role.plan.traffic[a].bytes);
    }
    text += fmt::format(
        "  {}: {} per rank and step, {} for all ranks\n", short_name(axis),
        least == most ? format_bytes(most) : format_bytes(least) + " to " + format_bytes(most),
        format_bytes(all[a].bytes));
  }
  return text;
}

LayoutFacts facts_of(const LayoutPlan& plan) {
  LayoutFacts facts{.layout = plan.layout,
                    .node_of_rank = nodes_of_ranks(plan.layout.ranks(), plan.ranks_per_node),
                    .traffic = plan.roles.front().plan.traffic};
  facts.transport.fill("-");
  return facts;
}

/// "1.2 s a step, 5,321 tokens/s, 12.0 % exposed messages; "
std::string time_text(const LayoutPlan& plan) {
  if (!plan.time) return "";
  return fmt::format("{} a step, {}, {:.1f} % exposed messages; ",
                     step_duration(plan.time->seconds), rate_text(plan),
                     100 * plan.time->exposed_seconds() / plan.time->seconds);
}

/// The cells of a predicted time; "" without predictions.
std::string time_cells(std::string_view step, std::string_view rate) {
  return fmt::format("  {:>8}  {:>9}", step, rate);
}

/// One line of the table of layouts. The columns that name a layout come first, then memory and
/// time: a narrow terminal shows as many as fit.
std::string row_text(std::size_t number, const LayoutChoice& choice) {
  const LayoutPlan& plan = choice.plan;
  const Deck& deck = plan.deck;
  return fmt::format(
      "  {:>2}  {:<23} {:<4} {:<3} {:<9}  {:>9} {:>3} %{}  {:>6} x {:<6} {:>6}  {:>5.1f} %\n",
      number, plan.layout.to_string(), deck.parallel.zero, deck.parallel.sequence ? "yes" : "no",
      name_of(deck.train.recompute), format_bytes(total_of(plan)), percent_text(plan, "<1"),
      plan.time ? time_cells(step_duration(plan.time->seconds),
                             plan.units_per_second() < 100
                                 ? fmt::format("{:.3g}", plan.units_per_second())
                                 : format_count(std::llround(plan.units_per_second())))
                : "",
      plan.batch.micro, plan.batch.accum, plan.batch.global, 100 * plan.bubble);
}

/// The lines below it: the predicted time, and the reason for the layout.
std::string reason_text(const LayoutChoice& choice) {
  return wrap(
      time_text(choice.plan) + choice.reason + (choice.why.empty() ? "" : "; " + choice.why), 100,
      6);
}

/// "1 was", "3 were".
std::string were(int number) {
  return fmt::format("{} {}", number, number == 1 ? "was" : "were");
}

std::string nothing_text(const LayoutSearch& search, const PlanCase& request) {
  const char* const kept =
      request.kept.empty() ? "" : " with the axes as they were given on the command line";
  if (!search.closest)
    return fmt::format("no layout of {} is legal{}\n", counted(request.ranks, "rank"), kept);
  const LayoutPlan& plan = search.closest->plan;
  return fmt::format(
      "no layout of {} fits{}: {} too large. The closest is {} with zero={}, "
      "recompute={},\nmicro-batches of {}: {} ({})\n",
      counted(request.ranks, "rank"), kept, were(search.too_large), plan.layout.to_string(),
      plan.deck.parallel.zero, name_of(plan.deck.train.recompute), plan.batch.micro,
      share_text(plan), join(search.closest->changes, " "));
}

/// "dp=8 tp=1 pp=1 cp=1, zero 1, recompute selective, 12 x 4 sequences: 60.0 GiB of 77.5 GiB, 77
/// %".
std::string short_text(const LayoutPlan& plan) {
  const Deck& deck = plan.deck;
  std::string text = fmt::format("{}, zero {}", plan.layout.to_string(), deck.parallel.zero);
  if (deck.train.recompute != Recompute::none)
    text += fmt::format(", recompute {}", name_of(deck.train.recompute));
  if (deck.family().fixed_shape())
    text += fmt::format(", {} x {} sequences a rank", plan.batch.micro, plan.batch.accum);
  text = fmt::format("{}: {}", text, share_text(plan));
  if (plan.time)
    text += fmt::format("; {} a step, {}", step_duration(plan.time->seconds), rate_text(plan));
  return text;
}

}  // namespace

std::int64_t parameters_of(const Deck& deck) {
  const ModelFamily& family = deck.family();
  const ModelConfig config = family.model(deck);
  ParameterSet parameters;
  family.make(config, parameters, {});
  return parameters.count();
}

namespace {

/// The words of a command line with further overrides (key=value). An override of a key that the
/// words already have replaces that word, because a key that is given twice is refused.
std::vector<std::string> with_overrides(std::vector<std::string> words,
                                        const std::vector<std::string>& overrides) {
  for (const std::string& given : overrides) {
    const std::string key = given.substr(0, given.find('=') + 1);
    const auto old = std::ranges::find_if(
        words, [&](const std::string& word) { return !key.empty() && word.starts_with(key); });
    if (old == words.end())
      words.push_back(given);
    else
      *old = given;
  }
  return words;
}

/// Deck and overrides of the command line with the changes of a layout.
std::string typed_words(const LayoutChoice* chosen, const PlanWords& words) {
  return as_typed(chosen == nullptr ? words.command
                                    : with_overrides(words.command, chosen->changes));
}

/// The lines that submit the deck as a job of several nodes; "" for one node.
std::string job_text(const LayoutChoice* chosen, const PlanCase& request, const PlanWords& words) {
  const int per_node = std::min(request.ranks, request.ranks_per_node);
  const int nodes = (request.ranks + per_node - 1) / per_node;
  if (nodes == 1) return "";
  const std::string typed = !words.out.empty()      ? words.out
                            : !words.preset.empty() ? words.preset + ".json"
                                                    : typed_words(chosen, words);
  const std::string deck = typed.substr(0, typed.find(' '));
  std::string variables = "DECK=" + deck;
  if (deck.size() < typed.size())
    variables += fmt::format(",OVERRIDES=\"{}\" \\\n             ", typed.substr(deck.size() + 1));
  const bool gpus = request.target.kind == DeviceKind::cuda;
  return fmt::format(
      "  on SLURM    sbatch --nodes={0} --ntasks-per-node={1}{2} jobs/generic.slurm {3}\n"
      "  on PBS      qsub -l select={0}:mpiprocs={1}{4} -v {5} jobs/generic.pbs\n",
      nodes, per_node, gpus ? fmt::format(" --gpus-per-node={}", per_node) : "", typed,
      gpus ? fmt::format(":ngpus={}", per_node) : "", variables);
}

/// "8 ranks (2 nodes of 4 ranks)", "2 ranks of one node".
std::string ranks_text(int ranks, int per_node) {
  const int on_node = std::min(ranks, per_node), nodes = (ranks + on_node - 1) / on_node;
  return nodes == 1 ? counted(ranks, "rank") + " of one node"
                    : fmt::format("{} ({} of {})", counted(ranks, "rank"), counted(nodes, "node"),
                                  counted(on_node, "rank"));
}

/// True if the target is a card for which `--calibration assumed` has the maker's figures.
bool has_assumed_times(const PlanTarget& target) {
  return target.assumed_node && target.peak_flops > 0;
}

/// Lines of at most 100 columns behind a label.
std::string labelled(std::string_view label, const std::string& text) {
  constexpr std::size_t kIndent = 14;
  return fmt::format("  {:<{}}", label, kIndent - 2) + wrap(text, 100, kIndent).substr(kIndent);
}

/// The text in place of a time that is not predicted.
std::string no_duration_text(const PlanCase& request) {
  if (has_assumed_times(request.target))
    return "not known: --calibration assumed predicts it, `choir calibrate` there measures it";
  return "not known: `choir calibrate` measures this machine, `choir bench step` this deck";
}

/// The time of the whole run, as far as it is known. A NOISY calibration has a line of its own.
std::string duration_text(const LayoutPlan& plan, const PlanCase& request) {
  const std::int64_t steps = request.deck.train.max_steps, interval = request.deck.eval.interval;
  if (!plan.time) return request.calibration ? "" : labelled("time", no_duration_text(request));
  std::string text = fmt::format("  time        {} of {}: about {}", counted(steps, "step"),
                                 step_duration(plan.time->seconds),
                                 format_duration(static_cast<double>(steps) * plan.time->seconds));
  if (interval > 0)
    text += fmt::format(", and {}", counted((steps + interval - 1) / interval, "evaluation"));
  if (request.deck.family().fixed_shape())
    text += fmt::format("; {} tokens", format_count(steps * std::llround(plan.time->seconds *
                                                                         plan.units_per_second())));
  return text + "\n";
}

/// A note on a plan that fits, but for which `choir tune` would leave more memory free.
std::string full_memory_text(const LayoutPlan& plan, const PlanTarget& target) {
  const double share = plan.needs() / plan.memory_limit;
  if (!target.node_memory || share <= kTunedShareOfNode) return "";
  return labelled("note",
                  fmt::format("training may use all of the memory, and this fills {:.0f} % of "
                              "it; `choir tune` keeps to {:.0f} %, because the rest of the "
                              "system needs memory, too",
                              100 * share, 100 * kTunedShareOfNode));
}

/// The reason for the chosen layout, and the file that would hold it.
std::string choice_text(const LayoutChoice& chosen, const PlanCase& request,
                        const PlanWords& words) {
  std::string text =
      fmt::format("the {}: {}", is_timed(request) ? "fastest" : "simplest", chosen.reason);
  if (!chosen.why.empty()) text += "; " + chosen.why;
  return words.out.empty() && words.preset.empty() ? text + "; --out writes it" : text;
}

/// The lines to type in order to train by this plan.
std::string command_text(const LayoutChoice* chosen, const PlanCase& request,
                         const PlanWords& words) {
  const auto train = [&](const std::string& deck) {
    return fmt::format("jobs/launch -n {} build/choir train {}", request.ranks, deck);
  };
  if (!words.out.empty())
    return fmt::format("  written     {} ({})\n  type        {}\n", words.out,
                       chosen == nullptr || chosen->changes.empty() ? "as written"
                       : is_timed(request)                          ? "the fastest layout"
                                                                    : "the simplest layout",
                       train(words.out));
  if (!words.preset.empty())
    return fmt::format("  type        {} --out {}.json\n  then        {}\n", words.repeated,
                       words.preset, train(words.preset + ".json"));
  return fmt::format("  type        {}\n", train(typed_words(chosen, words)));
}

}  // namespace

std::string answer(const LayoutPlan* plan, const LayoutSearch* search, const LayoutChoice* chosen,
                   const PlanCase& request, const PlanWords& words) {
  const bool own = plan != nullptr && plan->fits();
  // Nobody wrote the layout of a model that is known by its name.
  const char* const verdict = own || (chosen != nullptr && !words.preset.empty()) ? "FITS"
                              : chosen != nullptr ? "FITS IN ANOTHER LAYOUT"
                                                  : "DOES NOT FIT";
  std::string text =
      fmt::format("{}: {}, {} parameters, on {}, {}\n", verdict, request.deck.family().name(),
                  format_count(parameters_of(request.deck)),
                  ranks_text(request.ranks, request.ranks_per_node), request.target.name);
  if (own) text += fmt::format("  as written  {}\n", short_text(*plan));
  // A layout that changes nothing is the line above.
  if (chosen != nullptr && !(own && chosen->changes.empty()))
    text += fmt::format("  {}    {}\n", is_timed(request) ? "fastest " : "simplest",
                        short_text(chosen->plan));
  if (plan != nullptr && !own)
    text += fmt::format("  {}  {}: TOO LARGE\n", words.preset.empty() ? "as written" : "plain     ",
                        short_text(*plan));
  if (!own && chosen == nullptr && search != nullptr && search->closest)
    text += fmt::format("  closest     {}\n", short_text(search->closest->plan));
  if (request.target.assumed_node && !words.asked_node &&
      request.ranks >= request.target.ranks_per_node)
    text += fmt::format(
        "  assumed     {} a node, as is usual for this card; --gpus-per-node N for another "
        "number\n",
        counted(request.target.ranks_per_node, "GPU"));
  if (request.calibration && request.calibration->assumed)
    text += labelled("assumed", request.calibration->description);
  if (request.calibration && !request.calibration->noise.empty())
    text += labelled("NOISY",
                     "the predicted times mean little, because the calibration was disturbed (" +
                         request.calibration->noise + "): run choir calibrate again");
  if (!request.target.note.empty()) text += labelled("note", request.target.note);
  if (!own && chosen == nullptr) return text + "\n";
  text += full_memory_text(chosen != nullptr ? chosen->plan : *plan, request.target);
  if (chosen != nullptr && !chosen->changes.empty())
    text += labelled("chosen", choice_text(*chosen, request, words));
  text += duration_text(chosen != nullptr ? chosen->plan : *plan, request);
  text += command_text(chosen, request, words);
  if (!words.preset.empty())
    text += "  data        random ids, until data.format and data.train of that deck name others\n";
  return text + job_text(chosen, request, words) + "\n";
}

std::string to_string(const LayoutPlan& plan, const PlanTarget& target) {
  std::string text = fmt::format("plan for {}: {}\n{}\n", target.name, batch_text(plan),
                                 layout_report(facts_of(plan)));
  for (const RoleGroup& group : group_roles(plan))
    text += fmt::format("memory plan of {}:\n{}\n  {}\n", describe(group, plan),
                        group.roles.front()->plan.memory.to_string(), work_of(group));
  if (plan.head.rows > 0) text += plan.head.to_string() + "\n";
  if (!plan.tiles.empty()) text += plan.tiles + "\n";
  double memory = 0;
  for (const RolePlan& role : plan.roles) memory += plan.needs(role) * plan.ranks_of_role();
  const int ranks = plan.layout.ranks();
  text += fmt::format("{}{}: {} of memory, {:.2f} GFLOP a step\n{}", ranks > 1 ? "all " : "",
                      counted(ranks, "rank"), format_bytes(memory), plan.flops() / 1e9,
                      axes_text(plan));
  if (plan.layout.size(Axis::pipeline) > 1)
    text += fmt::format("  bubble of {}: {:.1f} % of the time of all stages (simulated)\n",
                        name_of(plan.deck.parallel.schedule), 100 * plan.bubble);
  text += prediction_text(plan);
  return text + fmt::format("{}: the fullest rank is {}, {}{}\n{}",
                            plan.fits() ? "FITS" : "TOO LARGE", plan.fullest().rank,
                            share_text(plan), host_text(plan), plan.waits_for_saves ? kWaits : "");
}

namespace {

std::string table_head(const LayoutSearch& search, const PlanCase& request) {
  const bool tokens = request.deck.family().fixed_shape();
  return fmt::format(
      "layouts of {}, {} a node, that fit into {} a rank, {}:\n"
      "  {:>2}  {:<23} {:<4} {:<3} {:<9}  {:>15}{}  {:>15} {:>6}  {:>7}\n",
      counted(request.ranks, "rank"), std::min(request.ranks, request.ranks_per_node),
      format_bytes(search.fitting.front().plan.memory_limit),
      is_timed(request) ? "the fastest first, by " + clock_text(*request.calibration)
                        : "the simplest first",
      "#", "layout", "zero", "sp", "recompute", "memory",
      is_timed(request) ? time_cells("step", tokens ? "tokens/s" : "batches/s") : "",
      "micro x accum", "global", "bubble");
}

/// "31 further layouts are legal and not shown: ...", with the reason.
std::string further_text(int number, const PlanCase& request) {
  return fmt::format("{} {} legal and not shown: {}", counted(number, "further layout"),
                     number == 1 ? "is" : "are",
                     is_timed(request) ? "slower, or too late in the search to be planned"
                                       : "later in this order, and not planned");
}

/// The line on rows whose steps do unequal work; "" if all global batches are equal.
std::string batches_text(const LayoutSearch& search) {
  std::set<std::int64_t> batches;
  std::int64_t common = 1;
  for (const LayoutChoice& choice : search.fitting)
    if (batches.insert(choice.plan.batch.global).second)
      common = std::lcm(common, choice.plan.batch.global);
  if (batches.size() < 2) return "";
  return fmt::format("  global batches differ: train.global_batch_size={} compares equal ones\n",
                     common);
}

/// The line on times, and the changes of the first layout.
std::string table_end(const LayoutSearch& search, const PlanCase& request) {
  const std::vector<std::string>& changes = search.fitting.front().changes;
  return fmt::format(
      "{}{}  use: {}\n", batches_text(search),
      request.calibration
          ? ""
          : fmt::format(
                "  to order by predicted time: --calibration FILE (from choir calibrate){}\n",
                has_assumed_times(request.target) ? " or --calibration assumed" : ""),
      changes.empty() ? "the deck as it is" : join(changes, " "));
}

}  // namespace

std::string to_string(const LayoutSearch& search, const PlanCase& request) {
  if (search.fitting.empty()) return nothing_text(search, request);
  std::string text = table_head(search, request);
  for (std::size_t i = 0; i < search.fitting.size(); ++i)
    text += row_text(i + 1, search.fitting[i]) + reason_text(search.fitting[i]);
  std::vector<std::string> others;
  if (search.further > 0) others.push_back(further_text(search.further, request));
  if (search.too_large > 0) others.push_back(were(search.too_large) + " too large");
  return text + fmt::format("  {}\n", others.empty() ? "no other is legal" : join(others, "; ")) +
         table_end(search, request);
}

std::string summary(const PlanFindings& found, const PlanCase& request) {
  constexpr std::size_t kParts = 5, kRows = 3;
  constexpr double kMostUnnamed = 0.1;
  std::string text = found.obstacle;
  if (found.plan != nullptr) {
    const LayoutPlan& plan = *found.plan;
    std::vector<MemoryPlan::Entry> parts;
    for (const MemoryPlan::Entry& entry : plan.fullest().plan.memory.entries)
      if (entry.bytes > 0 && (entry.place == MemoryPlace::device ||
                              (entry.place == MemoryPlace::host && plan.on_host)))
        parts.push_back(entry);
    std::ranges::stable_sort(parts, std::ranges::greater(), &MemoryPlan::Entry::bytes);
    std::vector<std::string> words;
    double listed = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i >= kParts && total_of(plan) - listed <= kMostUnnamed * total_of(plan)) break;
      listed += static_cast<double>(parts[i].bytes);
      words.push_back(
          fmt::format("{} {}", parts[i].name, format_bytes(static_cast<double>(parts[i].bytes))));
    }
    if (parts.size() > words.size())
      words.push_back("the rest " + format_bytes(total_of(plan) - listed));
    const bool written = found.written != nullptr && found.written->fits() &&
                         found.chosen != nullptr && !found.chosen->changes.empty();
    const std::string which = written ? " as written" : "";
    text += wrap(fmt::format("memory of the fullest rank, {}, in {}{}: {}; in all {}{}",
                             plan.fullest().rank, plan.layout.to_string(), which, join(words, "; "),
                             share_text(plan), host_text(plan)),
                 100, 2);
    text += prediction_text(plan, which);
  }
  if (found.search == nullptr) return text + "--all prints every kind of rank and every axis\n";
  if (found.search->fitting.empty()) return text + nothing_text(*found.search, request);
  const std::size_t rows = std::min(kRows, found.search->fitting.size());
  text += "\n" + table_head(*found.search, request);
  for (std::size_t i = 0; i < rows; ++i) text += row_text(i + 1, found.search->fitting[i]);
  const std::size_t more = found.search->fitting.size() - rows;
  text += more == 0
              ? std::string("  no other fits; --all prints the whole plan\n")
              : fmt::format("  {} more {}; --all prints {} with reasons, and the whole plan\n",
                            more, more == 1 ? "fits" : "fit", more == 1 ? "it" : "them");
  if (const int further = found.search->further; further > 0)
    text += fmt::format("  {}\n", further_text(further, request));
  return text + table_end(*found.search, request);
}

std::string details(const PlanFindings& found, const PlanCase& request) {
  // A plan of a layout that is too large would hide the one to use.
  const bool written_fits = found.written != nullptr && found.written->fits();
  std::string text;
  if (found.written != nullptr && (written_fits || found.chosen == nullptr))
    text = to_string(*found.written, request.target) + (found.search != nullptr ? "\n" : "");
  text += found.obstacle;
  if (found.search == nullptr) return text;
  text += to_string(*found.search, request);
  if (!written_fits && !found.search->fitting.empty())
    text += fmt::format("\nthe {} of them: {}", is_timed(request) ? "fastest" : "simplest",
                        to_string(*found.plan, request.target));
  return text;
}

}  // namespace choir
