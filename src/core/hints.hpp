#pragma once
// Advice on names that somebody mistyped or knows from another program: files that are missing,
// names of the Hugging Face hub where a path is expected, and options of a command line. Every
// function returns a sentence for the hint of an error, or "" if it has no better advice than the
// caller. Local; only advice_on_missing() looks at the file system.

#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// Advice on a file or folder that does not exist: the name beside it that is nearest ("did you
/// mean 'data/input.txt'?"), also if a folder of the path is misspelt, else some files of the same
/// kind in its folder. "" if `path` exists.
std::string advice_on_missing(const std::string& path);

/// advice_on_missing(), or `otherwise` if it has nothing to say; a name of the hub is told first.
std::string advice_on_path(const std::string& path, const std::string& otherwise);

/// The folder of the decks that come with the program, as one would type it here.
std::string own_decks_folder();

/// The deck of choir that trains what a configuration file of another program trains, by its name:
/// "inputs/shakespeare_char.json" for nanoGPT's config/train_shakespeare_char.py; "" if none does.
std::string deck_like(const std::string& foreign);

/// Keeps how the user called the program for program_name(): its path if it was one, else "choir".
void set_program_name(const std::string& typed);
/// The program as a command that is to be pasted begins: "build/choir".
const std::string& program_name();

/// The words of a command line, quoted for a shell where they must be.
std::string as_typed(const std::vector<std::string>& words);

/// Advice if `word` looks like the name of a model or tokenizer of the Hugging Face hub ("gpt2",
/// "meta-llama/Llama-3.2-1B") and no file has this name: choir downloads nothing, so the advice is
/// how to get it.
std::string advice_on_hub_name(std::string_view word);

/// Advice if `word` names a run or a checkpoint where the file of a tokenizer is expected: the
/// tokenizer file in it, or how to export one.
std::string advice_on_run_as_tokenizer(const std::string& word);

/// Advice on one word of a command line; `text` is "" if there is none.
struct OptionAdvice {
  std::string text;
  bool replaces = false;  ///< `words` take the place of the word
  bool first = false;     ///< `words` belong in front of all others
  std::vector<std::string> words;
};

/// Advice on an option that a command does not have. `given` is the word of the command line,
/// "--start=ROMEO"; `options` are the long options of the command, "--prompt". The names of
/// nanoGPT, Hugging Face, llama.cpp and NeMo come first, then the same name in another spelling
/// ("--top_k"), then misspellings.
OptionAdvice advice_on_option(std::string_view given, const std::vector<std::string>& options);

}  // namespace choir
