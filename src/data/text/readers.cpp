#include "src/data/text/readers.hpp"

#include <algorithm>
#include <string_view>

#include "choir/core/error.hpp"
#include "src/data/text/mpi_group.hpp"

namespace choir {

std::size_t cut_into_pieces(const TokenStream& stream, std::span<const TokenExtent> extents,
                            char* to, std::size_t chunk_bytes, std::vector<FilePiece>& pieces) {
  const auto width = static_cast<std::int64_t>(stream.token_bytes());
  const std::int64_t chunk =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(chunk_bytes) / width);
  const char* const begin = to;
  pieces.clear();
  for (TokenExtent left : extents) {
    CHOIR_CHECK(left.first >= 0 && left.count >= 0 && left.first + left.count <= stream.count(),
                "tokens [{}, {}) of a stream of {}", left.first, left.first + left.count,
                stream.count());
    while (left.count > 0) {
      const std::size_t index = stream.file_of(left.first);
      const TokenFile& file = stream.files()[index];
      const std::int64_t here = std::min({left.count, file.first + file.count - left.first, chunk});
      pieces.push_back({index, file.payload_offset + (left.first - file.first) * width,
                        static_cast<int>(here * width), to});
      to += here * width;
      left = {left.first + here, left.count - here};
    }
  }
  return static_cast<std::size_t>(to - begin);
}

MpiFiles::MpiFiles(const TokenStream& stream, MPI_Comm comm,
                   const std::map<std::string, std::string>& hints)
    : stream_(stream), comm_(comm), handles_(stream.files().size()) {
  if (hints.empty()) return;
  mpi_check(MPI_Info_create(&info_), "MPI_Info_create");
  for (const auto& [key, value] : hints)
    if (MPI_Info_set(info_, key.c_str(), value.c_str()) != MPI_SUCCESS)
      throw DeckError(fmt::format("data.hints: MPI takes no hint '{}' = '{}'", key, value),
                      "keys have at most 254, values at most 1023 characters");
}

MpiFiles::~MpiFiles() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  for (auto& handle : handles_)
    if (handle.file != MPI_FILE_NULL) MPI_File_close(&handle.file);
  if (info_ != MPI_INFO_NULL) MPI_Info_free(&info_);
}

MPI_File MpiFiles::open(std::size_t index) {
  Handle& handle = handles_[index];
  handle.used = ++clock_;
  if (handle.file != MPI_FILE_NULL) return handle.file;
  if (open_ == kMostOpen) close_oldest();
  const std::string& path = stream_.files()[index].path;
  if (const int code = MPI_File_open(comm_, path.c_str(), MPI_MODE_RDONLY, info_, &handle.file);
      code != MPI_SUCCESS) {
    handle.file = MPI_FILE_NULL;
    throw DataError(fmt::format("cannot open '{}': {}", path, mpi_text(code)),
                    "was it moved or deleted after the start? is it visible on every node?");
  }
  ++open_;
  if (echoed_.empty()) echo_hints(handle.file);
  return handle.file;
}

void MpiFiles::close_oldest() {
  Handle* oldest = nullptr;
  for (auto& handle : handles_)
    if (handle.file != MPI_FILE_NULL && (oldest == nullptr || handle.used < oldest->used))
      oldest = &handle;
  MPI_File_close(&oldest->file);
  --open_;
}

void MpiFiles::echo_hints(MPI_File file) {
  MPI_Info used = MPI_INFO_NULL;
  if (MPI_File_get_info(file, &used) != MPI_SUCCESS || used == MPI_INFO_NULL) return;
  int count = 0;
  MPI_Info_get_nkeys(used, &count);
  for (int i = 0; i < count; ++i) {
    char key[MPI_MAX_INFO_KEY + 1] = {}, value[MPI_MAX_INFO_VAL + 1] = {};
    int found = 0;
    MPI_Info_get_nthkey(used, i, key);
    MPI_Info_get(used, key, MPI_MAX_INFO_VAL, value, &found);
    if (found != 0) echoed_.emplace_back(key, value);
  }
  MPI_Info_free(&used);
}

void MpiFiles::require(int code, const MPI_Status& status, const FilePiece& piece) const {
  const std::string& path = stream_.files()[piece.file].path;
  if (code != MPI_SUCCESS)
    throw DataError(
        fmt::format("cannot read '{}' at byte {}: {}", path, piece.offset, mpi_text(code)));
  int got = 0;
  MPI_Get_count(&status, MPI_BYTE, &got);
  if (got != piece.bytes)
    throw DataError(
        fmt::format("'{}' gave {} of {} bytes at byte {}", path, got, piece.bytes, piece.offset),
        "it became shorter while in use; copy or prepare it again");
}

void MpiFiles::read(const FilePiece& piece) {
  MPI_Status status;
  const int code =
      MPI_File_read_at(open(piece.file), piece.offset, piece.to, piece.bytes, MPI_BYTE, &status);
  require(code, status, piece);
}

void MpiFiles::read_all(const FilePiece& piece) {
  MPI_Status status;
  const int code = MPI_File_read_at_all(open(piece.file), piece.offset, piece.to, piece.bytes,
                                        MPI_BYTE, &status);
  if (piece.bytes == 0) return;
  require(code, status, piece);
  // Open MPI's two-phase reading reports full counts past the end of a file.
  MPI_Offset size = 0;
  mpi_check(MPI_File_get_size(handles_[piece.file].file, &size), "MPI_File_get_size");
  if (size >= piece.offset + piece.bytes) return;
  throw DataError(fmt::format("'{}' ends at byte {}, before byte {}",
                              stream_.files()[piece.file].path, size, piece.offset + piece.bytes),
                  "it became shorter while in use; copy or prepare it again");
}

}  // namespace choir
