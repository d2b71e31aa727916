// The table of subcommands, the parsing of their arguments, and the start and end of the process.

#include "src/app/command_line.hpp"

#include <fmt/core.h>
#include <omp.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/deck/deck.hpp"
#include "src/core/hints.hpp"
#include "src/core/output.hpp"
#include "src/core/process.hpp"
#include "src/core/signals.hpp"
#include "src/core/text.hpp"
#include "src/deck/foreign_names.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/store/directory.hpp"

namespace choir {

const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      {"train", "train a model from a deck, or resume a run", train_command},
      {"eval", "evaluate a checkpoint on its validation data", eval_command},
      {"generate", "generate text with a checkpoint", generate_command},
      {"import", "create a run from a model of transformers, llama.cpp, nanoGPT, llm.c or NeMo",
       import_command},
      {"export", "write a checkpoint as a model for another program", export_command},
      {"average", "average checkpoints of a run into a new run", average_command},
      {"transcribe", "transcribe sound files with a speech checkpoint", transcribe_command},
      {"speak", "encode and decode sound files, or decode codes, with a codec", speak_command},
      {"talk", "hold a dialogue with a duplex checkpoint: text and sound while it listens",
       talk_command},
      {"prepare", "prepare text or audio for training; create corpora", prepare_command},
      {"verify", "check that a deck trains the same in every layout", verify_command},
      {"plan", "predict memory, messages and work of any layout; list the layouts that fit",
       plan_command},
      {"calibrate", "measure this machine, so that plan predicts the time of a step",
       calibrate_command},
      {"rehearse", "simulate start, step and save of thousands of ranks on one process",
       rehearse_command},
      {"tune", "find the largest batches that fit into memory, and write a deck", tune_command},
      {"inspect", "show the contents of a checkpoint", inspect_command},
      {"report", "write an HTML page about runs or benchmarks", report_command},
      {"runs", "list the runs below a folder: state, step, losses, deck", runs_command},
      {"doctor", "check this machine: ranks, hosts, cores, versions, bandwidth", doctor_command},
      {"bench", "measure a step, ops, communication, readers; summarise a sweep", bench_command},
  };
  return table;
}

namespace {

/// Returns a message unless the value is finite: NaN passes all comparisons of CLI11.
std::string refusal_unless_finite(const std::string& value) {
  return std::isfinite(std::strtod(value.c_str(), nullptr))
             ? ""
             : fmt::format("Value {} is not a finite number", value);
}

ExitCode code_of(const std::exception& error) {
  return failure_of(error).code;
}

void print_error(const std::string& text) {
  // Messages about a command line begin with the command.
  const char* const before = text.starts_with("choir ") ? "" : "choir: ";
  write_fitted(stderr, before + printable_message(text) + "\n");
  std::fflush(stderr);
}

/// Time that the other processes wait for the one that prints the error.
constexpr std::chrono::seconds kTimeToSpeak{1};

/// Refuses thread counts that OpenMP would silently reduce or ignore.
void require_sane_threads() {
  constexpr int kMost = 4096;
  const char* const given = std::getenv("OMP_NUM_THREADS");
  if (given == nullptr || *given == 0) return;
  for (const std::string& level : split(given, ',')) {
    const std::string_view word = trim(level);
    int threads = 0;
    const auto [stop, error] = std::from_chars(word.begin(), word.end(), threads);
    if (error == std::errc() && stop == word.end() && threads >= 1 && threads <= kMost) continue;
    throw DeckError(
        fmt::format("the environment has OMP_NUM_THREADS={}", shown_as_text(given)),
        fmt::format("legal: 1 to {} threads per rank, each with its own core; or unset it", kMost));
  }
}

int guarded(const std::function<int()>& body, bool everyone_speaks) {
  bool begun = false;
  try {
    require_compiled_isa();
    require_sane_threads();
    begun = true;
    return body();
  } catch (const std::exception& error) {
    if ((begun && everyone_speaks) || speaks_before_mpi())
      print_error(describe(error));
    else  // The launcher ends all ranks as soon as one exits with an error.
      std::this_thread::sleep_for(kTimeToSpeak);
    return static_cast<int>(code_of(error));
  }
}

}  // namespace

CommandOption CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption CommandOption::shows_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption CommandOption::hidden() {
  option_->group("");
  return *this;
}

CommandOption CommandOption::within(int low, int high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

CommandOption CommandOption::within(std::int64_t low, std::int64_t high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

CommandOption CommandOption::within(double low, double high) {
  option_->check(refusal_unless_finite)->check([low, high](const std::string& value) {
    const double number = std::strtod(value.c_str(), nullptr);
    return number >= low && number <= high
               ? ""
               : fmt::format("Value {} not in range {:g} to {:g}", value, low, high);
  });
  return *this;
}

CommandOption CommandOption::positive() {
  option_->check(refusal_unless_finite)->check([](const std::string& value) {
    return std::strtod(value.c_str(), nullptr) > 0 ? ""
                                                   : fmt::format("Value {} not above 0", value);
  });
  return *this;
}

CommandOption CommandOption::one_of(const std::vector<std::string>& words) {
  // Words of other programs for formats and types.
  static const std::map<std::string, std::string> kForeign{
      {"huggingface", "hf"}, {"hugging_face", "hf"}, {"transformers", "hf"}, {"safetensors", "hf"},
      {"llama.cpp", "gguf"}, {"llama_cpp", "gguf"},  {"ggml", "gguf"},       {"llm.c", "llmc"},
      {"lora", "peft"},      {"adapter", "peft"},    {"pytorch", "nanogpt"}, {"float32", "f32"},
      {"fp32", "f32"},       {"float16", "f16"},     {"fp16", "f16"},        {"bfloat16", "bf16"},
      {"cuda", "gpu"}};
  const auto legal = [words](std::string_view word) {
    return std::ranges::find(words, word) != words.end();
  };
  const auto problem = [words, legal](const std::string& word) -> std::string {
    if (legal(word)) return {};
    const auto foreign = kForeign.find(fold_name(word));
    const std::string near = foreign != kForeign.end() && legal(foreign->second)
                                 ? foreign->second
                                 : nearest_name(word, words);
    return fmt::format("'{}' is not one of: {}{}", word, join(words, ", "),
                       near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
  };
  option_->check(CLI::Validator([problem](std::string& word) { return problem(word); },
                                "{" + join(words, ",") + "}"));
  return *this;
}

CommandOption CommandOption::checked(std::function<std::string(const std::string&)> problem) {
  option_->check(std::move(problem));
  return *this;
}

CommandOption CommandOption::needs(const CommandOption& other) {
  option_->needs(other.option_);
  return *this;
}

CommandOption CommandOption::excludes(const CommandOption& other) {
  option_->excludes(other.option_);
  return *this;
}

bool CommandOption::given() const {
  return option_->count() > 0;
}

namespace {

/// The width of help texts: COLUMNS of the environment, or the width of the terminal, or 100.
std::size_t help_columns() {
  constexpr std::size_t kLeast = 60, kWithoutTerminal = 100;
  if (const char* const given = std::getenv("COLUMNS"); given != nullptr)
    if (const long columns = std::strtol(given, nullptr, 10); columns > 0)
      return std::max(kLeast, static_cast<std::size_t>(columns));
  const std::size_t columns = terminal_columns(stdout);
  return columns > 0 ? std::max(kLeast, columns) : kWithoutTerminal;
}

/// The lines of a text, each of which is broken between words if it is longer than `width`.
std::string help_lines(const std::string& text, std::size_t width) {
  std::string out;
  for (const std::string& line : split(text, '\n'))
    out += line.size() <= width ? line + "\n" : wrap(line, width, 0);
  if (!out.empty()) out.pop_back();
  return out;
}

/// The names, type and choices of an option, broken behind blanks and commas.
std::string help_name(std::string_view name, std::size_t width) {
  constexpr std::string_view kIndent = "\n      ";
  std::string out;
  while (name.size() > width) {
    const std::size_t at = name.find_last_of(" ,", width - 1);
    if (at == std::string_view::npos) break;
    out += std::string(trim(name.substr(0, at + 1))).append(kIndent);
    name.remove_prefix(at + 1);
  }
  return out.append(name);
}

/// Help without the options that exclude each other: one that is given beside another is refused
/// by name, and the list hides what an option does. Types, bounds and defaults are in words, and
/// lines are as long as the terminal allows.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    constexpr std::size_t kIndent = 6;
    std::stringstream out;
    CLI::detail::format_help(
        out,
        help_name(make_option_name(option, positional) + make_option_opts(option),
                  help_columns() - kIndent),
        help_lines(make_option_desc(option), help_columns() - column_width_), column_width_);
    return out.str();
  }
  std::string make_subcommand(const CLI::App* app) const override {
    std::stringstream out;
    CLI::detail::format_help(out, app->get_display_name(true),
                             help_lines(app->get_description(), help_columns() - column_width_),
                             column_width_);
    return out.str();
  }
  std::string make_description(const CLI::App* app) const override {
    return help_lines(CLI::Formatter::make_description(app), help_columns());
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    if (const std::size_t at = text.find(" Excludes:"); at != std::string::npos) text.erase(at);
    // " INT:INT in [1 - 8]=2": a bound of 2^30 or more stands for none.
    static const std::regex kBounds("([A-Z]+):[A-Z]+ in \\[([^ ]+) - ([^ ]+)\\]");
    static const std::regex kDefault("^( [A-Z]+(?: from [^ ]+(?: to [^ ]+)?)?)=([^ ]+)");
    constexpr double kNoBound = 1 << 30;
    if (std::smatch found; std::regex_search(text, found, kBounds)) {
      const std::string high = found.str(3);
      const bool bound = std::strtod(high.c_str(), nullptr) < kNoBound;
      text = found.prefix().str() + found.str(1) + " from " + found.str(2) +
             (bound ? " to " + high : "") + found.suffix().str();
    }
    return std::regex_replace(text, kDefault, "$1, default $2");
  }
};

}  // namespace

CommandLine::CommandLine(const std::string& description, const std::string& name)
    : app_(std::make_shared<CLI::App>(description, name)) {
  app_->formatter(std::make_shared<HelpFormatter>());
}

template <class T>
CommandOption CommandLine::add_option(const std::string& names, T& variable,
                                      const std::string& help) {
  return CommandOption(app_->add_option(names, variable, help));
}
template CommandOption CommandLine::add_option(const std::string&, std::string&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, Arguments&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, int&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::int64_t&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::uint64_t&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, double&, const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<int>&,
                                               const std::string&);
template CommandOption CommandLine::add_option(const std::string&, std::optional<double>&,
                                               const std::string&);

CommandOption CommandLine::add_flag(const std::string& names, bool& variable,
                                    const std::string& help) {
  return CommandOption(app_->add_flag(names, variable, help));
}

void CommandLine::require_subcommand() {
  app_->require_subcommand(1);
}

// The subcommand is owned by its parent, which lives as long.
CommandLine CommandLine::add_subcommand(const std::string& name, const std::string& description) {
  return CommandLine(std::shared_ptr<CLI::App>(app_, app_->add_subcommand(name, description)));
}

void CommandLine::callback(std::function<void()> action) {
  app_->callback(std::move(action));
}

namespace {

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// True if the command accepts key.path=value, by the name of its positional argument.
bool takes_keys(const CLI::App& app) {
  return std::ranges::any_of(app.get_options(), [](const CLI::Option* option) {
    const std::string name = option->get_name(true);
    return option->get_positional() && (name == "overrides" || name == "words" || name == "deck");
  });
}

/// "choir generate" as a command that works when it is pasted: "build/choir generate".
std::string pasted(const std::string& command) {
  return program_name() + command.substr(command.find(' '));
}

bool has_word(const Arguments& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

/// A hint on two words where a command has --out: the second may be meant as the result.
std::string hint_on_result(const std::string& command, const std::vector<std::string>& options,
                           const Arguments& given) {
  const bool nested = command.find(' ') != command.rfind(' ');  // `given` begins with its name
  if (nested || !has_word(options, "--out") || has_word(given, "--out") || given.size() != 2 ||
      given[0].starts_with("-") || given[1].starts_with("-") ||
      given[1].find('=') != std::string::npos)
    return {};
  // A sound file that is there is an input: the result is another one.
  std::error_code ignored;
  const std::filesystem::path last(given[1]);
  if (last.has_extension() && std::filesystem::is_regular_file(last, ignored))
    return fmt::format("the result is named by --out: {} {} --out {}", pasted(command),
                       as_typed(given),
                       as_typed({last.stem().string() + "_out" + last.extension().string()}));
  return fmt::format("the result is named by --out: {} {} --out {}", pasted(command),
                     as_typed({given[0]}), as_typed({given[1]}));
}

/// The run below runs/ that has saved a checkpoint last, or one that is not there yet.
std::string run_for_example() {
  namespace fs = std::filesystem;
  std::string newest = "runs/quickstart";
  fs::file_time_type saved = fs::file_time_type::min();
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("runs", failed)) {
    const fs::path checkpoints = entry.path() / "checkpoints";
    if (!fs::exists(entry.path() / "deck.json", failed) ||
        CheckpointDirectory(checkpoints.string()).steps().empty())
      continue;
    const fs::file_time_type time = fs::last_write_time(checkpoints, failed);
    if (failed || time <= saved) continue;
    saved = time;
    newest = entry.path().string();
  }
  return as_typed({newest});
}

/// The command as typed, completed by every argument that is required and absent.
std::string hint_on_required(const std::string& command, const CLI::App& app,
                             const Arguments& given) {
  if (const std::string result = hint_on_result(command, long_options(app), given); !result.empty())
    return result;
  // The name of the innermost command is the first of the words if the command has two names.
  const bool nested = command.find(' ') != command.rfind(' ');
  const Arguments words(given.begin() + (nested && !given.empty() ? 1 : 0), given.end());
  std::string places, options;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    std::string name = option->get_name(option->get_positional());
    if (option->get_positional()) {
      const bool run = name == "checkpoint" || name == "run";
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
      places += " " + (run ? run_for_example() : name);
    } else {
      std::string value = name.substr(name.find_first_not_of('-'));
      std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
      options += fmt::format(" {} {}", name, name == "--out" ? "FOLDER" : value);
    }
  }
  const std::string typed = words.empty() ? "" : " " + as_typed(words);
  return fmt::format("for example: {}{}{}{}; `{} --help` lists the arguments", pasted(command),
                     places, typed, options, command);
}

/// The command with an example of the run or the deck that it needs; "" if it needs another word.
std::string example_of(const std::string& command, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional() || !option->get_required()) continue;
    const std::string name = option->get_name(true);
    if (name == "checkpoint")
      return fmt::format("a run or a checkpoint follows: {} {}; {} runs lists the runs",
                         pasted(command), run_for_example(), program_name());
    if (name == "deck") return fmt::format("a deck follows: {} inputs/debug.json", pasted(command));
    break;
  }
  return {};
}

/// A hint about words that belong to no option.
std::string hint_on_words(const std::string& command, const std::vector<std::string>& options,
                          const Arguments& words, const Arguments& given) {
  if (command == "choir prepare" && !words.empty() && !words[0].starts_with("-"))
    return fmt::format(
        "the kind of data comes first: `choir prepare text {} --out FOLDER`; `choir "
        "prepare --help` lists the kinds",
        as_typed({words[0]}));
  if (const std::string result = hint_on_result(command, options, given); !result.empty())
    return result;
  for (const std::string& word : words) {
    if (word.starts_with("-")) break;  // the next word is probably its value
    if (word.find('=') != std::string::npos)
      return fmt::format("`{}` takes no keys of the deck; `{} --help` lists the arguments", command,
                         command);
    const bool sound = word.ends_with(".wav") || word.ends_with(".flac") ||
                       word.ends_with(".mp3") || word.ends_with(".ogg") || word.ends_with(".opus");
    if (sound && has_word(options, "--audio"))
      return fmt::format("several clips of a question are joined by commas: --audio a.wav,{}",
                         word);
    if (has_word(options, "--prompt") && !has_word(given, "--prompt"))
      return fmt::format("a prompt follows --prompt: --prompt {}", as_typed({word}));
  }
  return fmt::format("`{} --help` lists the arguments", command);
}

/// Advice on a key of the deck that was written as an option. `next` is the word behind it.
OptionAdvice advice_on_key(const FamilyTable& families, const std::string& word,
                           const std::string& next) {
  if (!word.starts_with("--") || word.size() < 4) return {};
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
  const std::string advice = foreign_advice(families.keys(), name);
  if (advice.empty()) return {};
  if (advice.find(' ') != std::string::npos) return {.text = fmt::format("{}: {}", name, advice)};
  std::string value = equals == std::string::npos ? next : word.substr(equals + 1);
  const bool known = !value.empty() && (equals != std::string::npos || !value.starts_with("-"));
  const std::string ours = fmt::format("{}={}", advice, known ? value : "VALUE");
  return {.text = "deck keys follow the deck without dashes: " + as_typed({ours}),
          .replaces = known,
          .words = {ours}};
}

/// A hint about arguments that the command does not have. A user who writes `--batch_size=12` may
/// mean an option that has another name here, or a key of the deck. All of them are told at once,
/// with the whole command if each has a successor.
std::string hint_on_arguments(const FamilyTable& families, const CLI::App& app,
                              const std::string& command, const Arguments& left,
                              const Arguments& given) {
  const std::vector<std::string> options = long_options(app);
  std::vector<std::string> commands;
  for (const CLI::App* any : app.get_subcommands(nullptr)) commands.push_back(any->get_name());
  for (const std::string& word : left)
    if (const std::string near = nearest_name(word, commands); !near.empty())
      return fmt::format("did you mean `{} {}`?", command, near);
  const bool keys = takes_keys(app);
  std::vector<std::string> told;
  Arguments first, corrected;
  bool whole = true;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string& word = given[i];
    if (std::ranges::find(left, word) == left.end() || !word.starts_with("-")) {
      corrected.push_back(word);
      continue;
    }
    const std::string next = i + 1 < given.size() ? given[i + 1] : "";
    OptionAdvice advice = advice_on_option(word, options);
    if (advice.text.empty() && keys) {
      advice = advice_on_key(families, word, next);
      if (advice.replaces && word.find('=') == std::string::npos) ++i;
    }
    if (!advice.text.empty()) told.push_back(advice.text);
    whole = whole && advice.replaces;
    Arguments& to = advice.first ? first : corrected;
    to.insert(to.end(), advice.words.begin(), advice.words.end());
  }
  if (const std::string example = given.empty() ? example_of(command, app) : ""; !example.empty())
    return example;
  if (told.empty()) return hint_on_words(command, options, left, given);
  first.insert(first.end(), corrected.begin(), corrected.end());
  std::string hint = join(told, "\n     ");
  const std::size_t innermost = command.find(' ', command.find(' ') + 1);
  const bool nested = innermost != std::string::npos;  // the words contain its name
  if (whole && !nested)
    hint += fmt::format("{}the whole command: {} {}", told.size() > 1 ? "\n     " : "; ",
                        pasted(command), as_typed(first));
  return hint;
}

/// The words that look like options and are none of the command: the value of such a word was
/// taken for another argument and may have been refused first.
Arguments unknown_options(const CLI::App& app, const Arguments& given) {
  const std::vector<std::string> known = long_options(app);
  Arguments unknown;
  for (const std::string& word : given)
    if (word.starts_with("--") && word.size() > 2 &&
        !has_word(known, word.substr(0, word.find('='))))
      unknown.push_back(word);
  return unknown;
}

/// The words that belong to no option, in the order of the command line: CLI11 reports them from
/// the last to the first.
Arguments in_order(Arguments left, const Arguments& given) {
  std::ranges::stable_sort(left, {}, [&](const std::string& word) {
    return std::ranges::find(given, word) - given.begin();
  });
  return left;
}

/// The message of the parser about an option that was given too often or without its value, in
/// words that name the cause; other messages pass unchanged.
std::string said_of_option(const std::string& text) {
  std::smatch match;
  static const std::regex kTwice("(-[^ ]+): At Most 1 required but received ([0-9]+)");
  static const std::regex kNoValue("(-[^ ]+): 1 required .* missing");
  if (std::regex_match(text, match, kTwice))
    return fmt::format("{} is given {} times, and one value counts; give it once", match.str(1),
                       match.str(2));
  if (std::regex_match(text, match, kNoValue))
    return fmt::format("{} needs a value behind it", match.str(1));
  return text;
}

}  // namespace

void add_tensor_option(CommandLine& app, int& tensor) {
  app.add_option("--tensor", tensor, "tensor-parallel ranks; must divide the number of ranks")
      .within(1, kMostTensorRanks);
}

void add_ema_option(CommandLine& app, bool& ema) {
  app.add_flag("--ema", ema, "use the averaged weights of train.ema, as eval.ema=true does");
}

void add_codec_run(CommandLine& app, CodecRunRequest& request) {
  app.add_option("codec", request.checkpoint, "run directory or checkpoint of a codec").required();
  add_ema_option(app, request.ema);
  app.add_option("--device", request.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", request.precision, "fp32 or fp64; default: as trained");
}

bool speaks_before_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::string(rank) == "0";
  return true;
}

std::optional<int> parse(CommandLine& app, const Invocation& call) {
  Arguments reversed(call.arguments.rbegin(),
                     call.arguments.rend());  // the order that CLI11 expects
  try {
    app.app_->parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0)  // --help
      return speaks_before_mpi() ? app.app_->exit(error) : 0;
    return without_mpi([&]() -> int {
      Arguments left = in_order(app.app_->remaining(true), call.arguments);
      const auto is = [&](CLI::ExitCodes code) {
        return error.get_exit_code() == static_cast<int>(code);
      };
      bool extra = is(CLI::ExitCodes::ExtrasError) && !left.empty();
      // An option that is misspelt or has another name here is advised on first, and a command
      // without its subcommand lacks no argument.
      const bool lacking = is(CLI::ExitCodes::RequiredError) && left.empty() &&
                           std::string_view(error.what()).ends_with(" is required");
      std::string command = app.app_->get_name();
      const CLI::App* innermost = app.app_.get();
      while (!innermost->get_subcommands().empty()) {
        innermost = innermost->get_subcommands().front();
        command += " " + innermost->get_name();
      }
      if (const Arguments unknown = unknown_options(*innermost, call.arguments);
          is(CLI::ExitCodes::ValidationError) && !unknown.empty()) {
        left = unknown;
        extra = true;
      }
      throw DeckError(
          fmt::format("{}: {}", command,
                      extra ? "not an argument of this command: " + join(left, " ")
                            : said_of_option(error.what())),
          lacking && !(call.arguments.empty() && !example_of(command, *innermost).empty())
              ? hint_on_required(command, *innermost, call.arguments)
              : hint_on_arguments(call.families, *innermost, command, left, call.arguments));
    });
  }
  return std::nullopt;
}

int without_mpi(const std::function<int()>& body) {
  return guarded(body, false);
}

int finished(const std::function<int()>& command) {
  turn_signals_of_writes_into_errors();
  outlive_readers();
  int code = 0;
  try {
    const SignalThread signals;
    code = command();
  } catch (const std::exception& error) {  // --describe and similar options print without a guard
    print_error(describe(error));
    code = static_cast<int>(code_of(error));
  }
  const std::string lost = flush_stdout();
  // An error that is already printed, and exit code 75 for the launcher, take precedence.
  if (!lost.empty() && code == 0) {
    print_error(lost);
    code = static_cast<int>(ExitCode::storage);
  }
  return code;
}

int with_mpi(const std::function<int(MpiSession&)>& body) {
  const auto all = [&] {
    MpiSession session;
    try {
      return body(session);
    } catch (const std::exception& error) {
      const auto* own = dynamic_cast<const Error*>(&error);
      // In a rehearsal more ranks agree than exist, because the others are simulated.
      const bool everywhere = (own ? own->agreed_ranks() : 1) >= session.size();
      if (everywhere && session.rank() == 0) print_error(describe(error));
      if (everywhere) return static_cast<int>(code_of(error));
      print_error(fmt::format("[rank {}/{}] {}", session.rank(), session.host(), describe(error)));
      MpiSession::abort(code_of(error));
    }
  };
  return guarded(all, true);
}

void settle_openmp(char** argv) {
  const auto given = [](const char* name) { return std::getenv(name) != nullptr; };
  const int threads = std::min(omp_get_max_threads(), omp_get_thread_limit());
  std::vector<std::pair<const char*, std::string>> better;
  if (omp_get_dynamic() != 0) better.emplace_back("OMP_DYNAMIC", "false");
  if (omp_get_max_active_levels() < 1) better.emplace_back("OMP_MAX_ACTIVE_LEVELS", "1");
  if (threads < omp_get_max_threads() && given("OMP_NUM_THREADS"))
    better.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  if (threads > 1 && !given("GOMP_SPINCOUNT") && !given("OMP_WAIT_POLICY"))
    better.emplace_back("GOMP_SPINCOUNT", "1000");
  for (const auto& [name, value] : better) setenv(name, value.c_str(), 1);
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  // Without AT_BASE this is the loader, which was called with the program as its argument.
  if (!better.empty() && !error && getauxval(AT_BASE) != 0) {
    // libgomp has already bound this thread to one place (OMP_PROC_BIND); the new process binds
    // anew.
    const cpu_set_t cores = own_cores();
    sched_setaffinity(0, sizeof cores, &cores);
    execv(self.c_str(), argv);
  }
  omp_set_dynamic(0);
  omp_set_max_active_levels(std::max(1, omp_get_max_active_levels()));
  omp_set_num_threads(threads);
}

}  // namespace choir
