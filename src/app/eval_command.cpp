// choir eval CHECKPOINT [key.path=value ...] [--tasks FILE.jsonl ...]
#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <utility>

#include "choir/core/log.hpp"
#include "choir/run/training_data.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/models/gpt/task_evaluation.hpp"
#include "src/run/evaluation_record.hpp"
#include "src/run/loaded_model.hpp"

namespace choir {
namespace {

struct EvalRequest {
  const FamilyTable& families;
  std::string checkpoint, precision;
  Arguments overrides;
  int tensor = 1;
  Arguments tasks;
  TaskOptions options;
  std::string items;  ///< file of the scores of all items
  bool json = false;
};

std::string head_of(const LoadedModel& loaded) {
  return fmt::format("checkpoint={} step={}", loaded.checkpoint.path,
                     loaded.checkpoint.manifest.step);
}

/// The checkpoint of a record, and the properties that its results depend on.
EvaluationRecord record_base(const LoadedModel& loaded) {
  EvaluationRecord record;
  record.checkpoint = loaded.checkpoint.path;
  record.step = loaded.checkpoint.manifest.step;
  record.precision = name_of(loaded.deck.train.precision);
  if (loaded.deck.eval.ema) record.conditions.emplace_back("ema", 1);
  return record;
}

/// Writes records to the standard output, if they are wanted as JSON, and to the run. Local.
void write_records(const EvalRequest& request, const std::vector<EvaluationRecord>& records) {
  if (request.json)
    for (const EvaluationRecord& record : records) print_safely("{}\n", json_of(record));
  if (const std::string problem = keep_records(records); !problem.empty())
    print_safely(stderr, "warning: the scores are not in the report of the run: {}\n", problem);
}

/// Keeps the samples with the most errors for the report of the run. Local.
void keep_worst_of(const EvaluationRecord& record, const std::vector<WorstSample>& samples) {
  const std::string file = evaluations_file(record.checkpoint);
  if (file.empty()) return;  // a checkpoint outside a run directory
  const std::string problem =
      keep_worst(std::filesystem::path(file).parent_path().string(),
                 {.step = record.step, .source = record.source, .samples = samples});
  if (!problem.empty())
    print_safely(stderr, "warning: the samples with the most errors are not in the report: {}\n",
                 problem);
}

int evaluate(const EvalRequest& request, Workplace& place, Logger& log) {
  LoadedModel loaded = open_model(request.families, request.checkpoint, request.precision,
                                  *place.mesh, request.overrides);
  if (const auto replaced = replaced_sets(loaded, request.overrides); !replaced.names.empty())
    log.info("{} replaces the validation data of the run ({})", replaced.by,
             join(replaced.names, ", "));
  const auto data =
      loaded.deck.family().open_evaluation(loaded.deck, loaded.vocabulary, *place.mesh, log);
  load_instance(loaded, data->shapes(), place);
  data->load_scorers(*place.device);
  const double start = now_seconds();
  ProgressLine progress(log, "evaluation", 3);  // seconds between lines in a log
  const EvaluationResult result = data->evaluate(*loaded.instance, &progress);
  Communicator& world = place.mesh->world();
  together(world, [&] {
    EvaluationRecord base = record_base(loaded);
    base.source = join(request.overrides, " ");
    if (world.rank() != 0) return;
    write_records(request, records_of(result.sets, base));
    keep_worst_of(base, result.worst);
  });
  if (request.json) return 0;
  if (!result.examples.empty()) log.plain(result.examples + "\n");
  for (const std::string& line : lines_of(result.sets)) log.plain(line);
  log.plain(fmt::format("{} {} seconds={:.2f}", head_of(loaded), metrics_text(result.sets),
                        now_seconds() - start));
  return 0;
}

/// Reads the files of --tasks on rank 0. Collective.
std::vector<EvalTask> read_tasks(const Arguments& paths, Communicator& world) {
  std::vector<EvalTask> tasks;
  for (const std::string& path : paths) {
    std::string text;
    together(world, [&] {
      if (world.rank() != 0) return;
      CappedText read = read_capped_file(path, kMostListMiB);
      if (!read.fault.empty())
        throw DataError(fmt::format("task '{}' {}", path, read.fault),
                        "--tasks names files of JSON lines");
      text = std::move(read.text);
    });
    broadcast_text(world, text);
    together(world, [&] { tasks.push_back(parse_task(text, path)); });
  }
  return tasks;
}

EvaluationRecord record_of(const LoadedModel& loaded, const TaskEvaluation& evaluation,
                           std::size_t number, const TaskResult& result) {
  const EvalTask& task = evaluation.tasks()[number];
  EvaluationRecord record = record_base(loaded);
  record.set = task.name;
  record.kind = name_of(task.kind);
  record.source = task.source;
  record.conditions.emplace_back("items", std::ssize(task.items));
  if (task.kind == TaskKind::text) {
    record.conditions.emplace_back("window", evaluation.window());
    record.conditions.emplace_back("overlap", evaluation.overlap());
    std::int64_t bytes = 0, tokens = 0;
    for (const TaskItem& item : task.items) bytes += std::ssize(item.context);
    for (const ItemScore& score : result.items) tokens += score.tokens.front();
    record.conditions.emplace_back("bytes", bytes);
    record.conditions.emplace_back("tokens", tokens);
  }
  record.metrics = result.metrics;
  return record;
}

/// One JSON line for each item: its place, and its scores in full precision.
std::string item_lines(const EvalTask& task, const TaskResult& result) {
  std::string lines;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const ItemScore& score = result.items[i];
    nlohmann::ordered_json json;
    json["item"] = task.items[i].place;
    if (!score.log_probabilities.empty()) {
      json["log_probabilities"] = score.log_probabilities;
      json["tokens"] = score.tokens;
    }
    if (task.kind == TaskKind::choices) json["answer"] = task.items[i].answer;
    if (task.kind == TaskKind::generation) json["generated"] = score.generated;
    if (task.kind == TaskKind::generation || task.kind == TaskKind::continuation)
      json["matches"] = score.matches;
    lines += dumped_safely(json) + "\n";
  }
  return lines;
}

void write_results(const EvalRequest& request, const LoadedModel& loaded,
                   const TaskEvaluation& evaluation, const std::vector<TaskResult>& results,
                   Logger& log) {
  std::vector<EvaluationRecord> records;
  std::string items;
  for (std::size_t task = 0; task < results.size(); ++task) {
    records.push_back(record_of(loaded, evaluation, task, results[task]));
    items += item_lines(evaluation.tasks()[task], results[task]);
    if (!request.json) log.plain(text_of(records.back()));
  }
  if (!request.items.empty()) write_whole_file(request.items, items);
  write_records(request, records);
}

int evaluate_tasks(const EvalRequest& request, Workplace& place, Logger& log) {
  Communicator& world = place.mesh->world();
  std::vector<EvalTask> tasks = read_tasks(request.tasks, world);
  LoadedModel loaded = open_model(request.families, request.checkpoint, request.precision,
                                  *place.mesh, request.overrides);
  std::optional<TaskEvaluation> evaluation;
  together(world, [&] {
    require_ability(loaded, loaded.deck.family().generates(), "has no evaluation tasks", "gpt");
    if (loaded.vocabulary.empty())
      throw DataError(
          "the checkpoint has no vocabulary: its token files had no vocab.json, or the imported "
          "model had no tokenizer that choir reads",
          "evaluation tasks are texts; a model without a tokenizer cannot read them");
    evaluation.emplace(std::move(tasks),
                       Vocabulary::from_json(loaded.vocabulary, loaded.checkpoint.path),
                       model_of(loaded.deck).as<GptConfig>(), request.options);
  });
  load_instance(
      loaded, [&](ModelInstance& instance) { evaluation->plan(instance); }, place);
  const double start = now_seconds();
  const std::vector<TaskResult> results = evaluation->evaluate(*loaded.instance);
  together(world, [&] {
    if (world.rank() == 0) write_results(request, loaded, *evaluation, results, log);
  });
  if (!request.json)
    log.plain(fmt::format("{} tasks={} seconds={:.2f}", head_of(loaded), results.size(),
                          now_seconds() - start));
  return 0;
}

int run(const EvalRequest& request, MpiSession& session) {
  Workplace place;
  place.mesh = inference_mesh(session, request.tensor);
  choose_threads(place.mesh->node());
  Logger log(session.rank() == 0);
  if (!request.json) log.to_stdout();
  return request.tasks.empty() ? evaluate(request, place, log)
                               : evaluate_tasks(request, place, log);
}

/// Refuses words that are no overrides: usually they are manifests.
void require_overrides(const Arguments& overrides) {
  for (const std::string& word : overrides)
    if (word.find('=') == std::string::npos)
      throw DeckError(fmt::format("choir eval: '{}' is not of the form key.path=value", word),
                      fmt::format("to evaluate on other data: 'data.val=[\"{}\"]'; on tasks: "
                                  "--tasks FILE.jsonl",
                                  word));
}

/// --tasks takes all words that follow it, so overrides behind it are among them.
void separate(EvalRequest& request) {
  static const std::regex kOverride("[a-z_]+(\\.[A-Za-z0-9_]+)*=.*");
  for (auto word = request.tasks.begin(); word != request.tasks.end();) {
    if (!std::regex_match(*word, kOverride)) {
      ++word;
      continue;
    }
    request.overrides.push_back(*word);
    word = request.tasks.erase(word);
  }
}

void add_task_options(CommandLine& app, EvalRequest& request, std::optional<int>& front) {
  TaskOptions& options = request.options;
  const auto tasks = app.add_option(
      "--tasks", request.tasks,
      "files of JSON lines: multiple choice, continuations, generated answers, or texts");
  app.add_flag("--json", request.json, "print one JSON line per validation set or task");
  app.add_option("--items", request.items, "write the scores of every item to this file")
      .needs(tasks);
  app.add_option("--window", options.window,
                 "tokens that the model reads at once in a text; default: its positions")
      .within(std::int64_t{1}, std::int64_t{1} << 30)
      .needs(tasks);
  app.add_option("--overlap", options.overlap,
                 "tokens of a window of a text that the previous window has scored")
      .shows_default()
      .within(std::int64_t{1}, std::int64_t{1} << 30)
      .needs(tasks);
  app.add_option("--front", front,
                 "id of the token in front of a text, and of a choice without context; default: "
                 "that which begins a text, else that which ends one")
      .within(0, 1 << 30)
      .needs(tasks);
  app.add_flag("--text-start", options.starts,
               "begin every context with the tokens that begin a text (add_bos_token of "
               "lm-evaluation-harness)")
      .needs(tasks);
  app.add_option("--batch-tokens", options.batch_tokens,
                 "tokens of a batch, padding included; scores change only by rounding")
      .shows_default()
      .within(std::int64_t{1}, std::int64_t{1} << 30)
      .needs(tasks);
  app.add_option("--together", options.together, "texts that are generated together")
      .shows_default()
      .within(std::int64_t{1}, std::int64_t{1} << 16)
      .needs(tasks);
}

}  // namespace

int eval_command(const Invocation& call) {
  CommandLine app(
      "Evaluates a checkpoint on its validation data, or on other data: the mean loss, and for "
      "speech models the word and character error rates. With --tasks it scores a language model "
      "on evaluation tasks instead.",
      "choir eval");
  EvalRequest request{.families = call.families};
  std::optional<int> front;
  app.add_option("checkpoint", request.checkpoint, "checkpoint or run directory").required();
  app.add_option("overrides", request.overrides,
                 "overrides of the deck, for example data.val='[\"x.tok\"]'");
  app.add_option("--precision", request.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  bool ema = false;
  add_ema_option(app, ema);
  add_tensor_option(app, request.tensor);
  add_task_options(app, request, front);
  if (const auto code = parse(app, call)) return *code;
  separate(request);
  if (const int code = without_mpi([&] {
        require_overrides(request.overrides);
        return 0;
      });
      code != 0)
    return code;
  request.overrides = with_ema(std::move(request.overrides), ema);
  if (front) request.options.front = *front;
  return with_mpi([&](MpiSession& session) { return run(request, session); });
}

}  // namespace choir
