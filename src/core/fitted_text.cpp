// Text fitted into the columns of a terminal. Texts are made without knowing who reads them:
// paragraphs are broken at 100 columns, and tables are as wide as their cells. Here a paragraph is
// broken anew, a table loses blanks between its columns, and rows that are still too wide continue
// on a second line, all from the same column. A command remains one that can be copied.

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/output.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::size_t kUsualWidth = 100;  // of paragraphs that are broken where they are made
constexpr std::size_t kDeeper = 4;        // columns by which a continued row is indented

/// A line of UTF-8 by columns. Every character counts as one column.
class TextLine {
 public:
  explicit TextLine(std::string_view text) : text_(text) {
    for (std::size_t i = 0; i < text.size(); ++i)
      if ((static_cast<unsigned char>(text[i]) & 0xC0u) != 0x80) at_.push_back(i);
    while (indent_ < width() && blank(indent_)) ++indent_;
  }
  std::size_t width() const { return at_.size(); }
  std::size_t indent() const { return indent_; }
  /// True also behind the end of the line.
  bool blank(std::size_t column) const { return column >= width() || text_[at_[column]] == ' '; }
  /// " " behind the end of the line.
  std::string_view character(std::size_t column) const {
    if (column >= width()) return " ";
    const std::size_t end = column + 1 < width() ? at_[column + 1] : text_.size();
    return text_.substr(at_[column], end - at_[column]);
  }
  std::string_view from(std::size_t column) const {
    return column < width() ? text_.substr(at_[column]) : std::string_view{};
  }
  std::string_view until(std::size_t column) const {
    const std::string_view head = column < width() ? text_.substr(0, at_[column]) : text_;
    return head.substr(0, head.find_last_not_of(' ') + 1);
  }
  /// The columns at which a word begins behind two blanks or more.
  std::vector<std::size_t> cells() const {
    std::vector<std::size_t> begins;
    for (std::size_t c = indent_ + 2; c < width(); ++c)
      if (!blank(c) && blank(c - 1) && blank(c - 2)) begins.push_back(c);
    return begins;
  }

 private:
  std::string_view text_;
  std::vector<std::size_t> at_;  // where each character begins
  std::size_t indent_ = 0;
};

bool is_row(const TextLine& line) {
  return line.cells().size() >= 2;
}

/// The column at which the text of a line begins behind its label, time stamp or arrow.
std::size_t hanging_indent(const TextLine& line, std::size_t columns) {
  const std::string_view text = line.from(line.indent());
  if (text.starts_with("-> ")) return line.indent() + 3;
  if (text.size() > 1 && text[0] == '[' && std::isdigit(static_cast<unsigned char>(text[1])) != 0)
    return kDeeper;
  std::size_t hang = std::max<std::size_t>(line.indent(), 2);
  for (const std::size_t cell : line.cells())
    if (cell <= columns / 2) hang = cell;
  return hang;
}

bool is_command(std::string_view text) {
  constexpr std::array kLaunchers = {"jobs/launch ", "sbatch ", "qsub ", "mpiexec ", "$ "};
  const std::string_view program = text.substr(0, text.find(' '));
  return program.ends_with("/choir") ||
         std::ranges::any_of(kLaunchers, [&](const char* one) { return text.starts_with(one); });
}

/// True if the blank at column `c` separates a number from its unit.
bool before_unit(const TextLine& line, std::size_t c) {
  constexpr std::array<std::string_view, 12> kUnits = {"s", "ms",  "us",  "ns",  "%",   "x",
                                                       "B", "KiB", "MiB", "GiB", "TiB", "GB/s"};
  if (std::isdigit(static_cast<unsigned char>(line.from(c - 1)[0])) == 0) return false;
  const std::string_view rest = line.from(c + 1);
  return std::ranges::any_of(kUnits, [&](std::string_view unit) {
    return rest.starts_with(unit) &&
           (rest.size() == unit.size() ||
            std::isalnum(static_cast<unsigned char>(rest[unit.size()])) == 0);
  });
}

/// The last column of at most `most`, and behind `least`, at which a line may be broken: not before
/// a unit, and in a command not inside single quotes, and inside double quotes only if there is no
/// other column. If there is none, the first one behind `most`, or the end of the line.
std::size_t break_of(const TextLine& line, std::size_t least, std::size_t most, bool command) {
  std::size_t best = 0, quoted = 0;
  char quote = 0;
  for (std::size_t c = 0; c < line.width(); ++c) {
    const char letter = line.from(c)[0];
    if (command && (letter == '"' || letter == '\'') && (quote == 0 || quote == letter))
      quote = quote == 0 ? letter : '\0';
    if (letter != ' ' || c <= least || quote == '\'' || before_unit(line, c)) continue;
    if (c > most && best + quoted > 0) break;
    (quote == 0 ? best : quoted) = c;
    if (c > most) break;
  }
  return best > 0 ? best : quoted > 0 ? quoted : line.width();
}

std::string broken_line(std::string_view text, std::size_t columns, std::size_t hang,
                        bool command) {
  constexpr std::string_view kContinued = " \\";
  const bool continued = command && text.ends_with(kContinued);
  if (continued) text.remove_suffix(kContinued.size());
  std::string out, rest(text);
  const std::size_t room = columns - (command ? kContinued.size() : 0);
  for (std::size_t least = TextLine(text).indent();; least = hang) {
    const TextLine line(rest);
    const std::size_t at =
        line.width() <= room ? line.width() : break_of(line, least, room, command);
    out += line.until(at);
    if (at >= line.width()) return continued ? out.append(kContinued) : out;
    out.append(command ? kContinued : "").append("\n");
    rest = std::string(hang, ' ').append(trim(line.from(at)));
  }
}

/// The column at which all rows can be cut: the widest one of at most `columns` that is blank in
/// every longer row, and lies between two cells of at least half of them. 0 if there is none.
std::size_t cut_of(const std::vector<TextLine>& rows, std::size_t columns) {
  for (std::size_t c = columns; c >= columns / 2; --c) {
    std::size_t longer = 0, between = 0;
    bool clear = true;
    for (const TextLine& row : rows) {
      if (row.width() <= c) continue;
      ++longer;
      clear = clear && row.blank(c - 1);
      between += row.blank(c - 1) && (row.blank(c - 2) || row.blank(c)) ? 1 : 0;
    }
    if (clear && longer > 0 && 2 * between >= longer) return c;
  }
  return 0;
}

/// The rows with at most this number of blanks between columns.
std::vector<std::string> squeezed(const std::vector<std::string>& rows, std::size_t most) {
  const std::vector<TextLine> lines(rows.begin(), rows.end());
  std::size_t width = 0, indent = std::string::npos;
  for (const TextLine& line : lines) {
    width = std::max(width, line.width());
    indent = std::min(indent, line.indent());
  }
  std::vector<std::string> out(rows.size());
  for (std::size_t c = 0, blanks = 0; c < width; ++c) {
    const bool blank =
        std::ranges::all_of(lines, [&](const TextLine& line) { return line.blank(c); });
    blanks = blank && c >= indent ? blanks + 1 : 0;
    if (blanks > most) continue;
    for (std::size_t i = 0; i < lines.size(); ++i) out[i] += lines[i].character(c);
  }
  for (std::string& row : out) row.erase(row.find_last_not_of(' ') + 1);
  return out;
}

bool fit(const std::vector<std::string>& rows, std::size_t columns) {
  return std::ranges::all_of(
      rows, [&](const std::string& row) { return TextLine(row).width() <= columns; });
}

/// Each row as one line or several; all rows are cut at the same columns.
std::vector<std::string> folded_rows(const std::vector<std::string>& rows, std::size_t columns) {
  const std::vector<TextLine> lines(rows.begin(), rows.end());
  if (fit(rows, columns)) return rows;
  std::vector<std::string> out;
  const std::size_t cut = cut_of(lines, columns);
  if (cut == 0) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      out.push_back(broken_line(rows[i], columns, hanging_indent(lines[i], columns), false));
    return out;
  }
  std::size_t blanks = std::string::npos, indent = std::string::npos;
  for (const TextLine& line : lines) {
    indent = std::min(indent, line.indent());
    if (line.width() > cut) blanks = std::min(blanks, TextLine(line.from(cut)).indent());
  }
  std::vector<std::string> tails;
  for (const TextLine& line : lines)
    tails.push_back(line.width() > cut
                        ? std::string(indent + kDeeper, ' ').append(line.from(cut + blanks))
                        : "");
  tails = folded_rows(tails, columns);
  for (std::size_t i = 0; i < lines.size(); ++i)
    out.push_back(std::string(lines[i].until(cut)) + (tails[i].empty() ? "" : "\n" + tails[i]));
  return out;
}

/// True if a colon follows one of the first three words, as in "longest messages: 512 x".
bool begins_label(std::string_view text) {
  for (int words = 0; words < 3; ++words) {
    const std::size_t end = text.find(' ');
    if (text.substr(0, end).ends_with(':')) return true;
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + 1);
  }
  return false;
}

/// True if a paragraph was broken between two lines only because of the usual width. The line
/// before may be full by chance: a label begins a text of its own, and so does a line without an
/// indent, because paragraphs that are broken where they are made have one.
bool continues(const TextLine& line, std::size_t indent, const TextLine& next) {
  if (line.width() > kUsualWidth || next.width() == 0 || next.indent() != indent) return false;
  if (indent == 0 || begins_label(next.from(indent))) return false;
  std::size_t word = next.indent();
  while (!next.blank(word)) ++word;
  return line.width() + 1 + word - indent > kUsualWidth && next.cells().empty() &&
         !next.from(indent).starts_with("-> ");
}

/// The end of the table that begins at `first`: rows, with single lines that fit between them.
std::size_t end_of_table(const std::vector<std::string>& lines, std::size_t first,
                         std::size_t columns) {
  std::size_t end = first + 1;
  for (std::size_t i = end; i < lines.size() && i <= end + 1; ++i) {
    const TextLine line(lines[i]);
    if (is_row(line))
      end = i + 1;
    else if (line.width() > columns || line.width() == 0)
      break;
  }
  return end;
}

/// Appends the lines of a table, of which only the rows are changed, and only if one is too wide.
void append_table(std::vector<std::string>& out, std::span<const std::string> table,
                  std::size_t columns) {
  std::vector<std::string> rows;
  for (const std::string& line : table)
    if (is_row(TextLine(line))) rows.push_back(line);
  if (!fit(rows, columns)) {
    const std::vector<std::string> narrowest = squeezed(rows, 1);
    rows = fit(narrowest, columns) && !fit(squeezed(rows, 2), columns)
               ? narrowest
               : folded_rows(squeezed(rows, 2), columns);
  }
  auto row = rows.begin();
  for (const std::string& line : table) out.push_back(is_row(TextLine(line)) ? *row++ : line);
}

/// JSON is for programs, also on a terminal.
bool is_json(std::string_view text) {
  constexpr std::string_view kBegins = "{[\"\n]";
  return text.starts_with('{') ||
         (text.size() > 1 && text[0] == '[' && kBegins.find(text[1]) != std::string_view::npos);
}

}  // namespace

std::string fitted(std::string_view text, std::size_t columns) {
  if (columns == 0 || is_json(text)) return std::string(text);
  const std::vector<std::string> lines = split(std::string(text), '\n');
  std::vector<std::string> out;
  for (std::size_t i = 0; i < lines.size();) {
    const TextLine line(lines[i]);
    const std::size_t hang = hanging_indent(line, columns);
    const bool command = is_command(line.from(line.indent())) || is_command(line.from(hang));
    if (is_row(line) && !command) {
      const std::size_t end = end_of_table(lines, i, columns);
      append_table(out, {lines.data() + i, end - i}, columns);
      i = end;
    } else if (line.width() <= columns || is_json(line.from(line.indent()))) {
      out.push_back(lines[i++]);
    } else {
      std::string paragraph = lines[i++];
      const std::size_t indent =
          i < lines.size() && continues(line, line.indent(), TextLine(lines[i])) ? line.indent()
                                                                                 : hang;
      while (!command && i < lines.size() &&
             continues(TextLine(lines[i - 1]), indent, TextLine(lines[i])))
        paragraph.append(" ").append(trim(lines[i++]));
      out.push_back(broken_line(paragraph, columns, indent, command));
    }
  }
  return join(out, "\n");
}

}  // namespace choir
