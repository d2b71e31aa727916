#include "src/data/text/text_files.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{1} << 22;

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  auto walk = fs::recursive_directory_iterator(folder, failure);
  for (; !failure && walk != fs::recursive_directory_iterator(); walk.increment(failure)) {
    if (walk->path().filename().string().starts_with(".")) {
      walk.disable_recursion_pending();
      continue;
    }
    if (walk->is_regular_file()) names.push_back(walk->path());
  }
  if (failure)
    throw DataError(fmt::format("cannot list the folder '{}': {}", folder, failure.message()));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::vector<TextFile> find_text_files(const std::vector<std::string>& paths) {
  std::vector<TextFile> files;
  std::int64_t total = 0;
  const auto add = [&](const std::string& path) {
    files.push_back({path, PosixFile::for_reading(path).size()});
    total += files.back().bytes;
  };
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      add(path);
      continue;
    }
    const auto below = files_below(path);
    if (below.empty())
      throw DataError(fmt::format("folder '{}' holds no text files", path),
                      "name the files themselves");
    for (const auto& name : below) add(name);
  }
  if (files.empty()) throw DataError("no text given", "name files or folders");
  if (total == 0)
    throw DataError(fmt::format("text '{}' is empty", files.front().path),
                    "check the path, or name more files");
  return files;
}

void read_text(const TextFile& file, const UseText& use) {
  const PosixFile opened = PosixFile::for_reading(file.path);
  std::string piece;
  std::int64_t read = 0;
  while (read < file.bytes) {
    const std::size_t kept = piece.size();
    const auto more = std::min<std::int64_t>(file.bytes - read, kPieceBytes);
    piece.resize(kept + static_cast<std::size_t>(more));
    opened.read_at(piece.data() + kept, static_cast<std::size_t>(more), read);
    const std::int64_t offset = read - static_cast<std::int64_t>(kept);
    read += more;
    piece.erase(0, use(piece, offset, read < file.bytes));
  }
}

void scan_code_points(const TextFile& file, const std::function<void(char32_t)>& use) {
  read_text(file, [&](std::string_view text, std::int64_t offset, bool more_follows) {
    std::size_t at = 0;
    while (at < text.size()) {
      const CodePoint c = first_code_point(text.substr(at));
      if (c.incomplete && more_follows) break;
      if (c.length == 0)
        refuse_utf8(fmt::format("'{}'", file.path), offset + static_cast<std::int64_t>(at));
      use(c.value);
      at += static_cast<std::size_t>(c.length);
    }
    return at;
  });
}

namespace {

/// Bytes of text before a part that usually determine where the previous part ends, unless words
/// are longer.
constexpr std::int64_t kLead = 4096;

/// The result of a part, which ranks exchange; positions are bytes in the concatenation of all
/// files.
struct Outcome {
  std::int64_t begin = 0, end = 0, ids = 0, failed = 0;
};
constexpr std::size_t kNumbers = sizeof(Outcome) / sizeof(std::int64_t);

class EncodedText {
 public:
  EncodedText(Communicator* ranks, const std::vector<TextFile>& files, const Vocabulary& vocabulary,
              std::int64_t part_bytes)
      : ranks_(ranks), files_(files), vocabulary_(vocabulary), part_bytes_(part_bytes) {
    begins_.push_back(0);
    for (const TextFile& file : files_) begins_.push_back(begins_.back() + file.bytes);
    parts_ = (begins_.back() + part_bytes_ - 1) / part_bytes_;
  }

  void run(const UseIds& use) {
    std::int64_t place = 0;  // the ids before it are final
    for (std::int64_t first = 0; first < parts_; first += size()) {
      const std::int64_t mine = first + rank();
      if (mine < parts_) encode(mine, mine == first ? place : likely_begin(mine * part_bytes_));
      const auto here = static_cast<std::size_t>(std::min<std::int64_t>(size(), parts_ - first));
      const std::vector<Outcome> all = settle(first, here, place);
      place = all[here - 1].end;
      hand_over(all, here, use);
    }
  }

 private:
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  int size() const { return ranks_ ? ranks_->size() : 1; }
  void agreed(const std::function<void()>& action) const {
    if (ranks_)
      together(*ranks_, action);
    else
      action();
  }

  std::size_t file_at(std::int64_t place) const {
    const auto behind = std::upper_bound(begins_.begin(), begins_.end() - 1, place);
    return static_cast<std::size_t>(behind - begins_.begin()) - 1;
  }

  /// Encodes bytes of a file. Returns the position up to which the ids are final.
  std::int64_t encode_file(std::size_t f, std::int64_t from, std::int64_t to,
                           std::vector<std::int32_t>& ids) const {
    std::string text(static_cast<std::size_t>(to - from), '\0');
    PosixFile::for_reading(files_[f].path).read_at(text.data(), text.size(), from);
    const std::size_t used = vocabulary_.encode_part(
        text, to < files_[f].bytes, fmt::format("'{}'", files_[f].path), from, ids);
    return from + static_cast<std::int64_t>(used);
  }

  /// Encodes a part. A failure counts only if `begin` turns out to be right.
  void encode(std::int64_t part, std::int64_t begin) {
    const std::int64_t end = std::min((part + 1) * part_bytes_, begins_.back());
    mine_ = {.begin = begin, .end = begin};
    ids_.clear();
    failure_ = nullptr;
    try {
      for (std::size_t f = file_at(begin); f < files_.size() && begins_[f] < end; ++f) {
        const std::int64_t from = std::max(begin - begins_[f], std::int64_t{0});
        const std::int64_t to = std::min(end - begins_[f], files_[f].bytes);
        if (from < to) mine_.end = begins_[f] + encode_file(f, from, to, ids_);
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    mine_.ids = std::ssize(ids_);
    mine_.failed = failure_ ? 1 : 0;
  }

  std::int64_t likely_begin(std::int64_t place) const {
    const std::size_t f = file_at(place);
    const std::int64_t at = place - begins_[f], from = std::max(at - kLead, std::int64_t{0});
    if (at == 0) return place;
    std::vector<std::int32_t> ids;
    try {
      const std::int64_t end = encode_file(f, whole_character(f, from), at, ids);
      return begins_[f] + end;
    } catch (const DataError&) {
      return place;  // the rank with the previous part reports the error
    }
  }

  /// Returns the first byte at or after `from` that can begin a character.
  std::int64_t whole_character(std::size_t f, std::int64_t from) const {
    constexpr std::int64_t kLongest = 4;
    char bytes[kLongest] = {};
    const std::int64_t count = std::min(kLongest, files_[f].bytes - from);
    PosixFile::for_reading(files_[f].path).read_at(bytes, static_cast<std::size_t>(count), from);
    for (std::int64_t i = 0; i < count; ++i)
      if ((static_cast<unsigned char>(bytes[i]) & 0xC0u) != 0x80u) return from + i;
    return from;
  }

  std::vector<Outcome> exchange() const {
    std::vector<Outcome> all(static_cast<std::size_t>(size()));
    all[static_cast<std::size_t>(rank())] = mine_;
    if (size() > 1) ranks_->all_gather(all.data(), kNumbers, DType::i64);
    return all;
  }

  /// Repeats the encoding until each part begins where the previous one ended.
  std::vector<Outcome> settle(std::int64_t first, std::size_t count, std::int64_t place) {
    for (;;) {
      const std::vector<Outcome> all = exchange();
      std::int64_t expected = place;
      std::size_t right = 0;
      while (right < count && all[right].begin == expected && all[right].failed == 0)
        expected = all[right++].end;
      if (right == count) return all;
      const bool mine = static_cast<std::size_t>(rank()) == right;
      if (all[right].begin == expected)
        agreed([&] {
          if (mine) std::rethrow_exception(failure_);
        });
      if (mine) encode(first + rank(), expected);
    }
  }

  void hand_over(const std::vector<Outcome>& all, std::size_t count, const UseIds& use) {
    constexpr int kTag = 0;
    const auto bytes = [&](std::size_t r) {
      return static_cast<std::size_t>(all[r].ids) * sizeof(std::int32_t);
    };
    const auto me = static_cast<std::size_t>(rank());
    if (me > 0 && me < count && mine_.ids > 0) ranks_->send(ids_.data(), bytes(me), 0, kTag);
    std::exception_ptr failure;
    for (std::size_t r = 0; rank() == 0 && r < count; ++r) {
      if (r > 0) ids_.resize(static_cast<std::size_t>(all[r].ids));
      if (r > 0 && all[r].ids > 0)
        ranks_->receive(ids_.data(), bytes(r), static_cast<int>(r), kTag);
      try {
        if (!failure) use(ids_);
      } catch (...) {
        failure = std::current_exception();  // receive what the others send nevertheless
      }
    }
    agreed([&] {
      if (failure) std::rethrow_exception(failure);
    });
  }

  Communicator* ranks_;
  const std::vector<TextFile>& files_;
  const Vocabulary& vocabulary_;
  std::int64_t part_bytes_, parts_ = 0;
  std::vector<std::int64_t> begins_;  // first byte of each file, and the end of the last
  Outcome mine_;
  std::vector<std::int32_t> ids_;
  std::exception_ptr failure_;
};

}  // namespace

void encode_texts(Communicator* ranks, const std::vector<TextFile>& files,
                  const Vocabulary& vocabulary, std::int64_t part_bytes, const UseIds& use) {
  EncodedText(ranks, files, vocabulary, part_bytes).run(use);
}

}  // namespace choir
