#include "src/core/hints.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "src/core/text.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostEntries = 10'000;  // names of a folder that are compared
constexpr std::size_t kMostListed = 4;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The names in a folder, sorted; hidden ones are left out.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  fs::directory_iterator at(folder, failed);
  for (; !failed && at != fs::directory_iterator() && names.size() < kMostEntries;
       at.increment(failed))
    if (const std::string name = at->path().filename().string(); !name.starts_with('.'))
      names.push_back(name);
  std::ranges::sort(names);
  return names;
}

/// True if two names with the same ending are also near without it: "nope.json" is not "bom.json".
bool near_without_ending(const fs::path& word, const fs::path& name) {
  if (!word.has_extension() || word.extension() != name.extension()) return true;
  const std::string a = fold_name(word.stem().string()), b = fold_name(name.stem().string());
  return 2 * edit_distance(a, b) <= std::max(a.size(), b.size()) + 1;
}

/// The nearest name, or else the only one that begins with `word`; "" if there is none.
std::string nearest_or_begun(const std::string& word, const std::vector<std::string>& names) {
  constexpr std::size_t kShortest = 3;
  std::string near = nearest_name(word, names);
  if (!near.empty() && !near_without_ending(word, near)) near.clear();
  if (!near.empty() || word.size() < kShortest) return near;
  for (const std::string& name : names) {
    if (!name.starts_with(word)) continue;
    if (!near.empty()) return {};
    near = name;
  }
  return near;
}

/// The decks that come with the program: in a clone, or where `make install` puts them; "" if they
/// are in neither.
fs::path own_decks() {
  if (is_there("inputs/gpt_quickstart.json")) return "inputs";
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (const char* beside : {"../inputs", "../../inputs", "../share/choir/inputs"})
    if (const fs::path folder = (program / beside).lexically_normal();
        is_there(folder / "gpt_quickstart.json")) {
      const fs::path near = fs::proximate(folder, failed);
      return failed || near.string().starts_with("../..") ? folder : near;
    }
  return {};
}

/// A run or a deck that has this name in the folder where such files usually are; "" for paths of
/// several components.
fs::path in_usual_folder(const fs::path& given, bool exactly) {
  if (given.has_parent_path()) return {};
  const std::string name = given.string();
  const std::string deck = name + (given.extension() == ".json" ? "" : ".json");
  const fs::path decks = own_decks();
  for (const fs::path& exact : {fs::path("runs") / name, fs::path("inputs") / deck, decks / deck})
    if (exact.has_parent_path() && is_there(exact)) return exact;
  if (exactly) return {};
  for (const auto& [folder, word] : {std::pair{fs::path("runs"), name}, {decks, deck}}) {
    if (folder.empty() || (given.has_extension() && given.extension() != ".json")) continue;
    if (const std::string near = nearest_or_begun(word, names_in(folder)); !near.empty())
      return folder / near;
  }
  return {};
}

/// Replaces the first component of `path` that does not exist by its nearest neighbour; "" if none
/// is near.
fs::path corrected(const fs::path& path) {
  fs::path so_far;
  for (auto part = path.begin(); part != path.end(); ++part) {
    if (is_there(so_far / *part)) {
      so_far /= *part;
      continue;
    }
    const std::string near =
        nearest_or_begun(part->string(), names_in(so_far.empty() ? fs::path(".") : so_far));
    if (near.empty()) return {};
    so_far /= near;
    for (++part; part != path.end(); ++part) so_far /= *part;
    return is_there(so_far) ? so_far : fs::path();
  }
  return {};
}

/// "'data' has a.json, b.json": files with the same ending in the folder of the path.
std::string neighbours(const fs::path& path) {
  if (!path.has_extension()) return {};  // the name of a folder or of nothing
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::string list;
  std::size_t count = 0;
  for (const std::string& name : names_in(folder)) {
    if (fs::path(name).extension() != path.extension()) continue;
    if (++count > kMostListed) break;
    list += (list.empty() ? "" : ", ") + name;
  }
  if (list.empty()) return {};
  return fmt::format("'{}' has {}{}", folder.string(), list, count > kMostListed ? " ..." : "");
}

/// The first folder of the path that does not exist; "" if only the file is missing.
std::string missing_folder(const fs::path& path) {
  fs::path so_far;
  for (const fs::path& part : path.parent_path()) {
    so_far /= part;
    if (!is_there(so_far)) return so_far.string();
  }
  return {};
}

/// Advice on a checkpoint of a run that has others: it was removed, or no step of that number was
/// saved. "" for other paths.
std::string advice_on_checkpoint(const fs::path& path) {
  const auto is_step = [](const std::string& name) { return name.starts_with("step_"); };
  if (!is_step(path.filename().string()) || path.parent_path().filename() != "checkpoints")
    return {};
  std::vector<std::string> there;
  for (const std::string& name : names_in(path.parent_path()))
    if (is_step(name)) there.push_back(name);
  if (there.empty()) return {};
  std::ranges::sort(there);
  const std::size_t skipped = there.size() > kMostListed ? there.size() - kMostListed : 0;
  there.erase(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(skipped));
  return fmt::format("that step was not saved, or checkpoint.keep removed it since; '{}' has {}{}",
                     path.parent_path().string(), skipped > 0 ? "... " : "", join(there, ", "));
}

/// A run or a folder of data that a target of the Makefile makes.
struct MadeByTarget {
  std::string_view folder, name, target;
};
constexpr std::array kMadeByTargets = std::to_array<MadeByTarget>({
    {"runs", "quickstart", "quickstart"},
    {"runs", "asr_digits", "quickstart-speech"},
    {"runs", "asr_tutorial", "quickstart-speech"},
    {"runs", "asr_asterisk", "quickstart-speech"},
    {"runs", "asr_asterisk_scratch", "quickstart-speech"},
    {"data", "spoken_digits", "quickstart-speech"},
    {"data", "spoken_book", "quickstart-speech"},
    {"runs", "salm_encoder", "quickstart-salm"},
    {"runs", "salm_tutorial", "quickstart-salm"},
    {"data", "spoken_tasks", "quickstart-salm"},
    {"runs", "codec_tutorial", "quickstart-duplex"},
    {"runs", "duplex_encoder", "quickstart-duplex"},
    {"runs", "duplex_tutorial", "quickstart-duplex"},
    {"runs", "duplex_ear", "quickstart-duplex"},
    {"data", "spoken_dialogues", "quickstart-duplex"},
    {"runs", "smollm2", "quickstart-smollm2 MODEL=SmolLM2-135M-Instruct.gguf"},
    {"runs", "salm_smollm2", "quickstart-smollm2 MODEL=SmolLM2-135M-Instruct.gguf"},
});

/// Advice on a run or data of a tutorial that nobody has made yet, as "runs/NAME" or as a path
/// inside of it; "" for other paths, and where there is no Makefile with the targets.
std::string advice_on_tutorial(const fs::path& path) {
  auto part = path.begin();
  if (std::distance(path.begin(), path.end()) < 2 || !is_there(".make/quickstart.sh")) return {};
  const std::string folder = part->string(), name = (++part)->string();
  for (const MadeByTarget& made : kMadeByTargets)
    if (folder == made.folder && name == made.name && !is_there(fs::path(folder) / name))
      return fmt::format("`make {}` makes {}/{}", made.target, folder, name);
  return {};
}

}  // namespace

std::string advice_on_missing(const std::string& path) {
  fs::path given = fs::path(path).lexically_normal();
  if (!given.has_filename()) given = given.parent_path();
  if (path.empty() || is_there(given)) return {};
  if (const std::string saved = advice_on_checkpoint(given); !saved.empty()) return saved;
  if (const std::string target = advice_on_tutorial(given); !target.empty()) return target;
  if (const fs::path exact = in_usual_folder(given, true); !exact.empty())
    return fmt::format("did you mean '{}'?", exact.string());
  if (const fs::path near = corrected(given); !near.empty())
    return fmt::format("did you mean '{}'?", near.string());
  if (const fs::path usual = in_usual_folder(given, false); !usual.empty())
    return fmt::format("did you mean '{}'?", usual.string());
  if (const std::string folder = missing_folder(given); !folder.empty())
    return fmt::format("there is no folder '{}'{}", folder,
                       given.is_absolute() ? ""
                                           : fmt::format(" in '{}', the working directory",
                                                         fs::current_path().string()));
  return neighbours(given);
}

std::string advice_on_hub_name(std::string_view word) {
  constexpr std::array<std::string_view, 12> kShort{
      "gpt2",       "gpt2-medium", "gpt2-large", "gpt2-xl",  "distilgpt2", "cl100k_base",
      "o200k_base", "p50k_base",   "r50k_base",  "t5-small", "openai-gpt", "bert-base-uncased"};
  if (is_there(fs::path(word))) return {};
  const bool known = std::ranges::find(kShort, word) != kShort.end();
  const std::size_t slash = word.find('/');
  const bool pair = slash != std::string_view::npos && slash > 0 && slash + 1 < word.size() &&
                    word.find('/', slash + 1) == std::string_view::npos &&
                    std::ranges::all_of(word, [](char c) {
                      return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                             std::string_view("/-_.").find(c) != std::string_view::npos;
                    });
  // The owner is no folder here, and the name has no ending of a file.
  const std::string ending = fs::path(word).extension().string();
  constexpr std::array<std::string_view, 19> kFiles{
      ".json", ".jsonl", ".model", ".txt",  ".gguf", ".tok",  ".bin", ".py",  ".sh",  ".yaml",
      ".yml",  ".toml",  ".pt",    ".nemo", ".wav",  ".flac", ".mp3", ".ogg", ".opus"};
  const bool file = std::ranges::find(kFiles, ending) != kFiles.end();
  // Folders that users make are no owners on the hub, also before they exist.
  constexpr std::array<std::string_view, 12> kFolders{"runs",  "run",     "data", "inputs",
                                                      "build", "models",  "out",  "output",
                                                      "test",  "results", "tmp",  "checkpoints"};
  const std::string_view owner = word.substr(0, slash);
  const bool local =
      is_there(fs::path(owner)) || std::ranges::find(kFolders, owner) != kFolders.end();
  if (!known && (!pair || file || local || word.front() == '.')) return {};
  const std::string_view folder = word.substr(slash == std::string_view::npos ? 0 : slash + 1);
  if (word.find("_base") != std::string_view::npos)
    return fmt::format(
        "'{}' is a tokenizer of tiktoken; name the file of a tokenizer instead "
        "(tokenizer.json, tokenizer.model)",
        word);
  return fmt::format(
      "'{0}' is a name of the Hugging Face hub, and choir downloads nothing: "
      "`hf download {0} --local-dir {1}`, then name {1} (a model) or "
      "{1}/tokenizer.json (a tokenizer)",
      word, folder);
}

std::string advice_on_path(const std::string& path, const std::string& otherwise) {
  if (path == "-")
    return "'-' is not the standard input here: save what it carries in a file, and name the file";
  if (std::string hub = advice_on_hub_name(path); !hub.empty()) return hub;
  const std::string near = advice_on_missing(path);
  if (near.empty()) return otherwise;
  if (otherwise.empty()) return near;
  return near + (near.ends_with('?') ? " " : "; ") + otherwise;
}

std::string own_decks_folder() {
  const fs::path folder = own_decks();
  return folder.empty() ? "inputs" : folder.string();
}

std::string deck_like(const std::string& foreign) {
  std::string stem = fs::path(foreign).stem().string();
  for (const char* verb : {"train_", "finetune_", "eval_", "config_"})
    if (stem.starts_with(verb)) stem = stem.substr(std::string_view(verb).size());
  const fs::path deck = own_decks() / (stem + ".json");
  return deck.has_parent_path() && is_there(deck) ? deck.string() : "";
}

namespace {

std::string& kept_program_name() {
  static std::string name = "choir";
  return name;
}

}  // namespace

void set_program_name(const std::string& typed) {
  kept_program_name() = typed.find('/') == std::string::npos ? "choir" : as_typed({typed});
}

const std::string& program_name() {
  return kept_program_name();
}

std::string as_typed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view("-_.,:=/+%@").find(c) != std::string_view::npos;
    });
    std::string quoted = plain ? word : "'";
    for (const char c : plain ? std::string() : word)
      quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += (text.empty() ? "" : " ") + quoted + (plain ? "" : "'");
  }
  return text;
}

std::string advice_on_run_as_tokenizer(const std::string& word) {
  const fs::path folder(word);
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer/tokenizer.json"})
    if (is_there(folder / name))
      return fmt::format("name the file of the tokenizer in it: {}", (folder / name).string());
  if (is_there(folder / "checkpoints") || is_there(folder / "deck.json"))
    return fmt::format(
        "'{0}' is a run; `choir export {0} --format hf --out FOLDER` writes its "
        "tokenizer where it has one",
        word);
  return {};
}

namespace {

struct OptionName {
  std::string_view theirs;   ///< folded: lower case with '_'
  std::string_view program;  ///< that calls it so
  std::string_view ours;     ///< an option, or a sentence (recognised by a blank)
};

/// A name may occur several times; the first whose option the command has is meant.
constexpr std::array kOptionNames = std::to_array<OptionName>({
    {"sizes", "other programs",
     "--min-bytes and --max-bytes are the ends of the range of sizes here"},
    {"start", "nanoGPT", "--prompt"},
    {"text", "Hugging Face", "--prompt"},
    {"input", "Hugging Face", "--prompt"},
    {"inputs", "Hugging Face", "--prompt"},
    {"p", "llama.cpp", "--prompt"},
    {"prompt_file", "llama.cpp", "--prompts"},
    {"input_file", "NeMo", "--prompts"},
    {"file", "llama.cpp", "--prompts"},
    {"num_samples", "nanoGPT", "--samples"},
    {"n", "OpenAI", "--samples"},
    {"num_return_sequences", "Hugging Face", "--samples"},
    {"best_of", "Hugging Face", "--samples"},
    {"max_new_tokens", "nanoGPT", "--tokens"},
    {"max_tokens", "Hugging Face", "--tokens"},
    {"max_length", "Hugging Face", "--tokens"},
    {"tokens_to_generate", "NeMo", "--tokens"},
    {"num_tokens", "NeMo", "--tokens"},
    {"n_predict", "llama.cpp", "--tokens"},
    {"predict", "llama.cpp", "--tokens"},
    {"temp", "llama.cpp", "--temperature"},
    {"do_sample", "Hugging Face", "--temperature 0 takes the most likely token, others sample"},
    {"greedy", "NeMo", "--temperature 0 takes the most likely token"},
    {"num_beams", "Hugging Face", "--beam"},
    {"num_beams", "Hugging Face", "choir has no beam search; --samples gives several answers"},
    {"beam_size", "NeMo", "--beam"},
    {"beam_width", "NeMo", "--beam"},
    {"beam_size", "NeMo", "only `choir transcribe` has a beam search"},
    {"beam", "other programs",
     "only speech has a beam search: choir transcribe RUN --manifest FILE --beam 8"},
    {"channel_selector", "NeMo", "--channel"},
    {"lm", "other programs",
     "no language model is fused into recognition; --beam searches prefixes"},
    {"kenlm_model_file", "NeMo",
     "no language model is fused into recognition; --beam searches prefixes"},
    {"timestamps", "NeMo", "--json and --manifest write the times of words"},
    {"confidence", "NeMo", "there are no confidences; --json has the words with their times"},
    {"repetition_penalty", "Hugging Face", "choir has no penalties; see --temperature and --top-p"},
    {"no_repeat_ngram_size", "Hugging Face", "choir has no penalties; see --temperature"},
    {"min_p", "llama.cpp", "choir has --top-p and --top-k"},
    {"stream", "Hugging Face", "not needed: text is printed while it is generated"},
    {"interactive", "llama.cpp", "--chat"},
    {"conversation", "llama.cpp", "--chat"},
    {"chat_template", "llama.cpp", "--template"},
    {"system_prompt", "llama.cpp", "--system"},
    {"batch_size", "Hugging Face", "--batch"},
    {"per_device_eval_batch_size", "Hugging Face", "--batch"},
    {"dtype", "nanoGPT", "--precision"},
    {"torch_dtype", "Hugging Face", "--precision"},
    {"amp", "NeMo", "--precision"},
    {"cuda", "NeMo", "--device"},
    {"accelerator", "NeMo", "--device"},
    {"audio_file", "NeMo", "--audio"},
    {"audio_dir", "NeMo", "name the sound files, as in DIR/*.wav"},
    {"dataset_manifest", "NeMo", "--manifest"},
    {"manifest_filepath", "NeMo", "--manifest"},
    {"manifest", "NeMo",
     "manifests are values of the deck: 'data.val=[\"FILE.json\"]', or data.train to train"},
    {"manifest_filepath", "NeMo",
     "manifests are values of the deck: 'data.val=[\"FILE.json\"]', or data.train to train"},
    {"output_filename", "NeMo", "--out"},
    {"out_dir", "nanoGPT", "--out"},
    {"out_dir", "nanoGPT", "the run or checkpoint is the first argument, without an option"},
    {"config", "many programs", "the deck is the first argument, without an option"},
    {"config_file", "many programs", "the deck is the first argument, without an option"},
    {"deck", "choir", "the deck is the first argument, without an option"},
    {"output_dir", "Hugging Face", "--out"},
    {"output", "Hugging Face", "--out"},
    {"output_file", "llama.cpp", "--out"},
    {"outfile", "llama.cpp", "--out"},
    {"output_prefix", "Megatron", "--out"},
    {"save_path", "Hugging Face", "--out"},
    {"o", "llama.cpp", "--out"},
    {"outtype", "llama.cpp", "--type"},
    {"tokenizer_name", "Hugging Face", "--tokenizer"},
    {"tokenizer_type", "Megatron", "--tokenizer"},
    {"tokenizer_model", "Megatron", "--tokenizer"},
    {"vocab_file", "Megatron", "--tokenizer"},
    {"json_keys", "Megatron", "--text-field"},
    {"text_column", "Hugging Face", "--text-field"},
    {"val_split", "nanoGPT", "--val-fraction"},
    {"tensor_parallel_size", "NeMo", "--tensor"},
    {"tensor_model_parallel_size", "Megatron", "--tensor"},
    {"tp_size", "NeMo", "--tensor"},
    {"limit", "lm-evaluation-harness", "a task file has the items that are evaluated"},
    {"model", "Hugging Face", "the run or checkpoint is the first argument, without an option"},
    {"model_name_or_path", "Hugging Face",
     "the run or checkpoint is the first argument, without an option"},
    {"pretrained_name", "NeMo", "the run or checkpoint is the first argument, without an option"},
    {"model_path", "NeMo", "the run or checkpoint is the first argument, without an option"},
    {"ckpt", "nanoGPT", "the run or checkpoint is the first argument, without an option"},
    {"ckpt_path", "NeMo", "the run or checkpoint is the first argument, without an option"},
    {"checkpoint", "NeMo", "the run or checkpoint is the first argument, without an option"},
    {"compile", "nanoGPT", "not needed, nothing is compiled at run time"},
    {"ranks", "choir plan", "the launcher sets the ranks: jobs/launch -n RANKS build/choir ..."},
    {"np", "mpiexec", "the launcher sets the ranks: jobs/launch -n RANKS build/choir ..."},
    {"n", "mpiexec", "the launcher sets the ranks: jobs/launch -n RANKS build/choir ..."},
    {"ntasks", "srun", "the launcher sets the ranks: jobs/launch -n RANKS build/choir ..."},
    {"nproc_per_node", "torchrun",
     "the launcher sets the ranks: jobs/launch -n RANKS build/choir ..."},
});

}  // namespace

OptionAdvice advice_on_option(std::string_view given, const std::vector<std::string>& options) {
  const std::size_t dashes = std::min(given.find_first_not_of('-'), given.size());
  if (dashes == 0) return {};
  const std::size_t equals = given.find('=');
  const std::string name = fold_name(given.substr(dashes, equals - dashes));
  std::vector<std::string> value;
  if (equals != std::string_view::npos) value.emplace_back(given.substr(equals + 1));
  const auto has = [&](std::string_view option) {
    return std::ranges::find(options, option) != options.end();
  };
  const auto with_value = [&](std::string_view option) {
    std::vector<std::string> words{std::string(option)};
    words.insert(words.end(), value.begin(), value.end());
    return words;
  };
  const std::string word(given.substr(0, equals));
  for (const OptionName& known : kOptionNames) {
    if (known.theirs != name) continue;
    const bool sentence = known.ours.find(' ') != std::string_view::npos;
    const std::string_view option = known.ours.substr(0, known.ours.find(' '));
    if (option.starts_with("--") && !has(option)) continue;
    const bool first = known.ours.find("is the first argument") != std::string_view::npos;
    if (sentence)
      return {fmt::format("{} of {}: {}", word, known.program, known.ours), first, first, value};
    const std::vector<std::string> words = with_value(known.ours);
    return {
        fmt::format("{} of {} is {} here: {}", word, known.program, known.ours, as_typed(words)),
        true, false, words};
  }
  for (const std::string& option : options)
    if (fold_name(std::string_view(option).substr(2)) == name) {
      const std::vector<std::string> words = with_value(option);
      return {fmt::format("did you mean {}?", as_typed(words)), true, false, words};
    }
  std::vector<std::string> names;
  for (const std::string& option : options) names.push_back(option.substr(2));
  std::string near = nearest_name(name, names);
  if (near.empty()) {  // "--max", if one option begins so
    const auto begins = [&](const std::string& option) {
      return fold_name(option).starts_with(name + "_");
    };
    const auto found = std::ranges::find_if(names, begins);
    if (found == names.end() || std::ranges::count_if(names, begins) > 1) return {};
    near = *found;
  }
  const std::vector<std::string> words = with_value("--" + near);
  return {fmt::format("did you mean {}?", as_typed(words)), true, false, words};
}

}  // namespace choir
