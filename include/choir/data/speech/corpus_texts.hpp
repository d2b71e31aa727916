#pragma once
// The texts that a tokenizer is made of and labels are made from.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace choir {

/// Local. Texts in order: of a folder of packed audio the "text" of every line of its
/// manifest.jsonl; of a file whose lines are JSON objects (a NeMo manifest) the same; of any other
/// file its lines. Blanks at both ends are cut off, texts without anything else left out. Throws
/// DataError: missing, empty of texts, a line that is not JSON (file:line).
std::vector<std::string> read_corpus_texts(const std::vector<std::string>& paths);

/// Local. Calls use(line number from 0, text) for every line of a manifest, in order; "" where it
/// has no text. Throws DataError with file:line.
void read_manifest_texts(const std::string& path,
                         const std::function<void(std::int64_t, std::string&&)>& use);

}  // namespace choir
