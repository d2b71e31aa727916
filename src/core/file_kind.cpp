#include "src/core/file_kind.hpp"

#include <array>
#include <cstring>
#include <string>

#include "src/core/text.hpp"

namespace choir {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::string_view bytes;
  FileKind kind;
};
constexpr std::array<Magic, 8> kMagics{
    {{"GGUF"sv, FileKind::gguf},
     {"PK\x03\x04"sv, FileKind::zip},
     {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv, FileKind::torch_legacy},
     {"\x1f\x8b\x08"sv, FileKind::gzip},
     {"\x89HDF\r\n\x1a\n"sv, FileKind::hdf5},
     {"\x93NUMPY"sv, FileKind::npy},
     {"MMIDIDX\0\0"sv, FileKind::megatron_index},
     {"version https://git-lfs"sv, FileKind::git_lfs}}};

struct Number {
  std::uint32_t magic;
  FileKind kind;
};
// Files of llm.c begin with a date (the magic number) and a version.
constexpr std::array<Number, 8> kLlmc{{{20240326, FileKind::llmc_model},
                                       {20240803, FileKind::llmc_llama_model},
                                       {20240520, FileKind::llmc_tokens_u16},
                                       {20240801, FileKind::llmc_tokens_u32},
                                       {20240522, FileKind::llmc_evaluation},
                                       {20240527, FileKind::llmc_state},
                                       {20240328, FileKind::llmc_tokenizer},
                                       {20240327, FileKind::llmc_debug_state}}};
// A file of plain tokens hardly ever has such a small number after these four bytes.
constexpr std::uint32_t kMostVersion = 64;

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// True for the beginning of a page of HTML, whatever its case.
bool is_html(std::string_view bytes) {
  while (!bytes.empty() && (bytes.front() == ' ' || bytes.front() == '\n' || bytes.front() == '\r'))
    bytes.remove_prefix(1);
  const std::string start = fold_name(bytes.substr(0, 14));
  return start.starts_with("<!doctype html") || start.starts_with("<html");
}

}  // namespace

FileKind file_kind(std::string_view bytes) {
  for (const Magic& magic : kMagics)
    if (bytes.starts_with(magic.bytes)) return magic.kind;
  if (bytes.size() >= 8 && number_at<std::uint32_t>(bytes, 4) <= kMostVersion)
    for (const Number& number : kLlmc)
      if (number_at<std::uint32_t>(bytes, 0) == number.magic) return number.kind;
  if (bytes.size() >= 262 && bytes.substr(257, 5) == "ustar") return FileKind::tar;
  // A length followed by the opening brace of a JSON text of this length.
  if (bytes.size() >= 9 && bytes[8] == '{' && number_at<std::uint64_t>(bytes, 0) <= 100'000'000)
    return FileKind::safetensors;
  if (is_html(bytes)) return FileKind::html;
  return FileKind::unknown;
}

std::string_view describe(FileKind kind) {
  switch (kind) {
    case FileKind::safetensors:
      return "a safetensors file";
    case FileKind::gguf:
      return "a GGUF file";
    case FileKind::zip:
      return "a zip archive, as torch.save, numpy.savez and word processors write";
    case FileKind::torch_legacy:
      return "a checkpoint of torch before version 1.6";
    case FileKind::tar:
      return "a tar archive";
    case FileKind::gzip:
      return "compressed by gzip";
    case FileKind::hdf5:
      return "an HDF5 file";
    case FileKind::npy:
      return "an array of NumPy";
    case FileKind::megatron_index:
      return "an index of Megatron-LM";
    case FileKind::llmc_model:
      return "a model of llm.c";
    case FileKind::llmc_llama_model:
      return "a Llama model of llm.c";
    case FileKind::llmc_tokens_u16:
      return "a file of tokens of llm.c (GPT-2, 16 bits)";
    case FileKind::llmc_tokens_u32:
      return "a file of tokens of llm.c (Llama 3, 32 bits)";
    case FileKind::llmc_evaluation:
      return "an evaluation set of llm.c";
    case FileKind::llmc_state:
      return "a state of llm.c's optimizer";
    case FileKind::llmc_tokenizer:
      return "a tokenizer of llm.c";
    case FileKind::llmc_debug_state:
      return "a debug state of llm.c";
    case FileKind::git_lfs:
      return "a pointer of Git LFS, which stands for a file that was not fetched (git lfs pull)";
    case FileKind::html:
      return "a page of HTML, perhaps the answer of a server instead of a download";
    case FileKind::unknown:
      break;
  }
  return "of an unknown kind";
}

}  // namespace choir
