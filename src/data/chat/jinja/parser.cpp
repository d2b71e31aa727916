// The parser of Jinja programs.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "src/data/chat/jinja/tree.hpp"

namespace choir::jinja {
namespace {

constexpr int kDeepest = 200;

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

/// A stretch of the source: text, or the inside of a tag.
struct Segment {
  enum class Kind { text, print, block } kind = Kind::text;
  std::string_view text;
  int line = 1;
};

/// Divides the source into text and tags and removes the white space that tags remove.
std::vector<Segment> segments_of(std::string_view source) {
  if (source.ends_with('\n')) source.remove_suffix(1);
  std::vector<Segment> all;
  std::size_t at = 0;
  int line = 1;
  bool strips = false, line_end = false;  // what the last tag removes from the next text
  const auto lines = [&](std::string_view s) {
    line += static_cast<int>(std::count(s.begin(), s.end(), '\n'));
  };
  while (at <= source.size()) {
    std::size_t tag = at;
    while (tag < source.size() &&
           !(source[tag] == '{' && tag + 1 < source.size() &&
             (source[tag + 1] == '{' || source[tag + 1] == '%' || source[tag + 1] == '#')))
      ++tag;
    std::string_view text = source.substr(at, tag - at);
    const bool ends = tag >= source.size();
    const char kind = ends ? ' ' : source[tag + 1];
    const char mark = ends || tag + 2 >= source.size() ? ' ' : source[tag + 2];
    const int begun = line;
    lines(text);
    if (strips) {
      while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    } else if (line_end) {
      if (text.starts_with('\n'))
        text.remove_prefix(1);
      else if (text.starts_with("\r\n"))
        text.remove_prefix(2);
    }
    if (!ends && mark == '-') {
      while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    } else if (!ends && kind != '{' && mark != '+') {
      std::size_t start = text.size();
      while (start > 0 && (text[start - 1] == ' ' || text[start - 1] == '\t')) --start;
      const bool line_begins =
          start > 0 ? text[start - 1] == '\n'
                    : tag - text.size() == 0 || source[tag - text.size() - 1] == '\n';
      if (line_begins) text = text.substr(0, start);
    }
    if (!text.empty()) all.push_back({Segment::Kind::text, text, begun});
    if (ends) break;
    const std::string closing = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    std::size_t inside = tag + 2 + (mark == '-' || mark == '+' ? 1 : 0), close = inside;
    char quote = 0;
    int braces = 0;
    for (;; ++close) {
      if (close + 1 >= source.size()) fail(fmt::format("does not close its tag in line {}", line));
      const char c = source[close];
      if (kind != '#' && quote != 0) {
        if (c == '\\') ++close;
        if (c == quote) quote = 0;
        continue;
      }
      if (kind != '#' && (c == '\'' || c == '"')) {
        quote = c;
        continue;
      }
      // A dictionary may end just before the tag does: {{ {'a': {}}}}.
      if (kind == '{' && c == '{') ++braces;
      if (kind == '{' && c == '}' && braces > 0)
        --braces;
      else if (source.substr(close, 2) == closing)
        break;
    }
    std::string_view body = source.substr(inside, close - inside);
    strips = body.ends_with('-');
    const bool keeps = body.ends_with('+') && kind != '#';
    if (strips || keeps) body.remove_suffix(1);
    line_end = kind != '{' && !keeps;
    if (kind != '#')
      all.push_back({kind == '{' ? Segment::Kind::print : Segment::Kind::block, body, line});
    lines(source.substr(tag, close + 2 - tag));
    at = close + 2;
  }
  return all;
}

struct Token {
  enum class Kind { end, name, text, integer, real, sign } kind = Kind::end;
  std::string text;
};

void put_utf8(std::string& out, unsigned c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

/// The characters of a literal; `at` is behind the quote and moves behind the closing one.
std::string literal_text(std::string_view s, std::size_t& at, char quote, int line) {
  std::string text;
  for (; at < s.size() && s[at] != quote; ++at) {
    if (s[at] != '\\' || at + 1 >= s.size()) {
      text += s[at];
      continue;
    }
    const char c = s[++at];
    const std::size_t digits = c == 'u' ? 4 : c == 'x' ? 2 : 0;
    if (digits > 0 && at + digits < s.size()) {
      put_utf8(text, static_cast<unsigned>(
                         std::strtoul(std::string(s.substr(at + 1, digits)).c_str(), nullptr, 16)));
      at += digits;
    } else if (c == 'n') {
      text += '\n';
    } else if (c == 't') {
      text += '\t';
    } else if (c == 'r') {
      text += '\r';
    } else if (c == '\\' || c == '\'' || c == '"') {
      text += c;
    } else if (c != '\n') {
      text += {'\\', c};
    }
  }
  if (at >= s.size()) fail(fmt::format("does not close a text in line {}", line));
  ++at;
  return text;
}

std::vector<Token> tokens_of(std::string_view s, int line) {
  static constexpr std::array kTwo{"==", "!=", "<=", ">=", "//", "**"};
  std::vector<Token> all;
  for (std::size_t at = 0; at < s.size();) {
    const char c = s[at];
    if (is_blank(c)) {
      ++at;
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
      const std::size_t from = at;
      while (at < s.size() &&
             (std::isalnum(static_cast<unsigned char>(s[at])) != 0 || s[at] == '_'))
        ++at;
      all.push_back({Token::Kind::name, std::string(s.substr(from, at - from))});
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      const std::size_t from = at;
      bool real = false;
      while (at < s.size() && (std::isdigit(static_cast<unsigned char>(s[at])) != 0 ||
                               (s[at] == '.' && !real && at + 1 < s.size() &&
                                std::isdigit(static_cast<unsigned char>(s[at + 1])) != 0))) {
        real = real || s[at] == '.';
        ++at;
      }
      all.push_back({real ? Token::Kind::real : Token::Kind::integer,
                     std::string(s.substr(from, at - from))});
    } else if (c == '\'' || c == '"') {
      ++at;
      all.push_back({Token::Kind::text, literal_text(s, at, c, line)});
    } else {
      std::string sign(1, c);
      for (const char* two : kTwo)
        if (s.substr(at, 2) == two) sign = two;
      if (std::string_view("+-*/%~=<>()[]{}.,:|!").find(c) == std::string_view::npos || sign == "!")
        fail(fmt::format("has an unknown character '{}' in line {}", c, line));
      at += sign.size();
      all.push_back({Token::Kind::sign, sign});
    }
  }
  all.push_back({});
  return all;
}

class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, int line) : tokens_(tokens_of(text, line)), line_(line) {}

  bool at_end() const { return now().kind == Token::Kind::end; }
  void require_end() const {
    if (!at_end()) unexpected();
  }
  [[noreturn]] void unexpected() const {
    fail(fmt::format("has {} in line {}, where it is not understood",
                     at_end() ? "the end of a tag" : "'" + now().text + "'", line_));
  }
  bool accept_sign(std::string_view sign) { return accept(Token::Kind::sign, sign); }
  bool accept_word(std::string_view word) { return accept(Token::Kind::name, word); }
  void need_sign(std::string_view sign) {
    if (!accept_sign(sign)) unexpected();
  }
  void need_word(std::string_view word) {
    if (!accept_word(word)) unexpected();
  }
  std::string need_name() {
    if (now().kind != Token::Kind::name) unexpected();
    return tokens_[at_++].text;
  }
  bool sign_follows(std::string_view sign) const {
    return now().kind == Token::Kind::sign && now().text == sign;
  }

  /// One expression, or several with commas between them, which are a tuple.
  ExpressionPtr tuple() {
    ExpressionPtr first = expression();
    if (!sign_follows(",")) return first;
    auto all = made(Expression::Kind::list);
    all->parts.push_back(std::move(first));
    while (accept_sign(",") && !at_end() && !sign_follows(")")) all->parts.push_back(expression());
    return all;
  }

  ExpressionPtr expression() {
    const Depth depth(*this);
    ExpressionPtr value = disjunction();
    while (accept_word("if")) {
      auto choice = made(Expression::Kind::conditional);
      choice->parts.push_back(disjunction());
      choice->parts.push_back(std::move(value));
      choice->parts.push_back(accept_word("else") ? expression() : nullptr);
      value = std::move(choice);
    }
    return value;
  }
  /// Without `X if Y`, for the list of a loop.
  ExpressionPtr disjunction() {
    ExpressionPtr left = conjunction();
    while (accept_word("or")) left = binary("or", std::move(left), conjunction());
    return left;
  }
  void arguments(Expression& call) {
    while (!accept_sign(")")) {
      const bool is_named = now().kind == Token::Kind::name && ahead(1).kind == Token::Kind::sign &&
                            ahead(1).text == "=";
      if (is_named) {
        std::string name = need_name();
        need_sign("=");
        call.named.emplace_back(std::move(name), expression());
      } else {
        call.parts.push_back(expression());
      }
      if (!accept_sign(",") && !sign_follows(")")) unexpected();
    }
  }
  /// Filters behind a value: | name(arguments).
  ExpressionPtr filtered(ExpressionPtr value) {
    while (accept_sign("|")) {
      auto filter = made(Expression::Kind::filter);
      filter->text = need_name();
      filter->parts.push_back(std::move(value));
      if (accept_sign("(")) arguments(*filter);
      value = std::move(filter);
    }
    return value;
  }

 private:
  struct Depth {
    explicit Depth(ExpressionParser& parser) : of(parser) {
      if (++of.depth_ > kDeepest) fail(fmt::format("is too deeply nested in line {}", of.line_));
    }
    ~Depth() { --of.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ExpressionParser& of;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead(std::size_t by) const {
    return tokens_[std::min(at_ + by, tokens_.size() - 1)];
  }
  bool accept(Token::Kind kind, std::string_view text) {
    if (now().kind != kind || now().text != text) return false;
    ++at_;
    return true;
  }
  static ExpressionPtr made(Expression::Kind kind) {
    auto e = std::make_unique<Expression>();
    e->kind = kind;
    return e;
  }
  static ExpressionPtr literal(Value value) {
    auto e = made(Expression::Kind::literal);
    e->value = std::move(value);
    return e;
  }
  static ExpressionPtr binary(std::string sign, ExpressionPtr left, ExpressionPtr right) {
    auto e = made(Expression::Kind::binary);
    e->text = std::move(sign);
    e->parts.push_back(std::move(left));
    e->parts.push_back(std::move(right));
    return e;
  }
  static ExpressionPtr unary(std::string sign, ExpressionPtr value) {
    auto e = made(Expression::Kind::unary);
    e->text = std::move(sign);
    e->parts.push_back(std::move(value));
    return e;
  }

  ExpressionPtr conjunction() {
    ExpressionPtr left = negation();
    while (accept_word("and")) left = binary("and", std::move(left), negation());
    return left;
  }
  ExpressionPtr negation() {
    const Depth depth(*this);
    if (accept_word("not")) return unary("not", negation());
    return comparison();
  }
  ExpressionPtr comparison() {
    ExpressionPtr left = sum(), all;
    for (;;) {
      std::string sign;
      for (const char* one : {"==", "!=", "<=", ">=", "<", ">"})
        if (sign.empty() && accept_sign(one)) sign = one;
      if (sign.empty() && accept_word("in")) sign = "in";
      if (sign.empty() && now().text == "not" && now().kind == Token::Kind::name &&
          ahead(1).text == "in") {
        at_ += 2;
        sign = "not in";
      }
      if (sign.empty()) return left;
      left = binary(sign, std::move(left), sum());
    }
  }
  ExpressionPtr sum() {
    ExpressionPtr left = joined();
    for (;;) {
      if (accept_sign("+"))
        left = binary("+", std::move(left), joined());
      else if (accept_sign("-"))
        left = binary("-", std::move(left), joined());
      else
        return left;
    }
  }
  ExpressionPtr joined() {
    ExpressionPtr left = product();
    while (accept_sign("~")) left = binary("~", std::move(left), product());
    return left;
  }
  ExpressionPtr product() {
    ExpressionPtr left = signed_value();
    for (;;) {
      std::string sign;
      for (const char* one : {"*", "//", "/", "%"})
        if (sign.empty() && accept_sign(one)) sign = one;
      if (sign.empty()) return left;
      left = binary(sign, std::move(left), signed_value());
    }
  }
  ExpressionPtr signed_value() {
    const Depth depth(*this);
    for (const char* sign : {"-", "+"})
      if (accept_sign(sign)) return tested(filtered(unary(sign, bare())));
    return tested(filtered(bare()));
  }
  ExpressionPtr bare() {
    const Depth depth(*this);
    for (const char* sign : {"-", "+"})
      if (accept_sign(sign)) return unary(sign, bare());
    return postfix(primary());
  }
  ExpressionPtr tested(ExpressionPtr value) {
    while (accept_word("is")) {
      const bool negated = accept_word("not");
      auto test = made(Expression::Kind::test);
      test->text = need_name();
      test->parts.push_back(std::move(value));
      if (accept_sign("(")) {
        arguments(*test);
      } else if (now().kind == Token::Kind::text || now().kind == Token::Kind::integer ||
                 (now().kind == Token::Kind::name && now().text != "and" && now().text != "or" &&
                  now().text != "else" && now().text != "if" && now().text != "is" &&
                  now().text != "in" && now().text != "not")) {
        test->parts.push_back(postfix(primary()));
      }
      value = std::move(test);
      if (negated) value = unary("not", std::move(value));
      value = filtered(std::move(value));
    }
    return value;
  }

  ExpressionPtr primary() {
    const Token token = now();
    switch (token.kind) {
      case Token::Kind::text: {
        std::string all;
        while (now().kind == Token::Kind::text) all += tokens_[at_++].text;
        return literal(all);
      }
      case Token::Kind::integer:
        ++at_;
        return literal(static_cast<std::int64_t>(std::strtoll(token.text.c_str(), nullptr, 10)));
      case Token::Kind::real:
        ++at_;
        return literal(std::strtod(token.text.c_str(), nullptr));
      case Token::Kind::name: {
        ++at_;
        if (token.text == "true" || token.text == "True") return literal(true);
        if (token.text == "false" || token.text == "False") return literal(false);
        if (token.text == "none" || token.text == "None") return literal(Value::None{});
        auto name = made(Expression::Kind::name);
        name->text = token.text;
        return name;
      }
      case Token::Kind::sign:
        break;
      case Token::Kind::end:
        unexpected();
    }
    if (accept_sign("(")) {
      if (accept_sign(")")) return made(Expression::Kind::list);
      ExpressionPtr inside = tuple();
      need_sign(")");
      return inside;
    }
    if (accept_sign("[")) {
      auto list = made(Expression::Kind::list);
      while (!accept_sign("]")) {
        list->parts.push_back(expression());
        if (!accept_sign(",") && !sign_follows("]")) unexpected();
      }
      return list;
    }
    if (accept_sign("{")) {
      auto pairs = made(Expression::Kind::dictionary);
      while (!accept_sign("}")) {
        pairs->parts.push_back(expression());
        need_sign(":");
        pairs->parts.push_back(expression());
        if (!accept_sign(",") && !sign_follows("}")) unexpected();
      }
      return pairs;
    }
    unexpected();
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    for (;;) {
      if (accept_sign(".")) {
        auto member = made(Expression::Kind::attribute);
        if (now().kind == Token::Kind::integer) {
          member->kind = Expression::Kind::item;
          member->parts.push_back(std::move(value));
          member->parts.push_back(primary());
        } else {
          member->text = need_name();
          member->parts.push_back(std::move(value));
        }
        value = std::move(member);
      } else if (accept_sign("[")) {
        value = subscript(std::move(value));
      } else if (accept_sign("(")) {
        auto call = made(Expression::Kind::call);
        call->parts.push_back(std::move(value));
        arguments(*call);
        value = std::move(call);
      } else {
        return value;
      }
    }
  }
  ExpressionPtr subscript(ExpressionPtr value) {
    std::vector<ExpressionPtr> bounds(1);
    while (!accept_sign("]")) {
      if (accept_sign(":"))
        bounds.emplace_back();
      else if (bounds.back() == nullptr)
        bounds.back() = expression();
      else
        unexpected();
    }
    if (bounds.size() > 3 || (bounds.size() == 1 && bounds[0] == nullptr)) unexpected();
    auto item = made(bounds.size() == 1 ? Expression::Kind::item : Expression::Kind::slice);
    if (item->kind == Expression::Kind::slice) bounds.resize(3);
    item->parts.push_back(std::move(value));
    for (ExpressionPtr& bound : bounds) item->parts.push_back(std::move(bound));
    return item;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int line_, depth_ = 0;
};

class Parser {
 public:
  explicit Parser(std::string_view source) : segments_(segments_of(source)) {}

  Program whole() {
    Program all = body({});
    return all;
  }

 private:
  /// The statements up to one of the tags `ends`; its words are left in `end_`.
  std::vector<Statement> body(const std::vector<std::string>& ends) {
    if (++depth_ > kDeepest) fail("is too deeply nested");
    std::vector<Statement> all;
    while (at_ < segments_.size()) {
      const Segment segment = segments_[at_++];
      if (segment.kind == Segment::Kind::text) {
        Statement text;
        text.text = segment.text;
        all.push_back(std::move(text));
        continue;
      }
      auto parser = std::make_unique<ExpressionParser>(segment.text, segment.line);
      if (segment.kind == Segment::Kind::print) {
        Statement print;
        print.kind = Statement::Kind::print;
        print.parts.push_back(parser->tuple());
        parser->require_end();
        all.push_back(std::move(print));
        continue;
      }
      const std::string word = parser->need_name();
      if (std::find(ends.begin(), ends.end(), word) != ends.end()) {
        end_ = word;
        rest_ = std::move(parser);
        --depth_;
        return all;
      }
      all.push_back(statement(word, *parser, segment.line));
    }
    if (!ends.empty()) fail(fmt::format("ends without '{}'", ends.back()));
    --depth_;
    return all;
  }

  Statement statement(const std::string& word, ExpressionParser& parser, int line) {
    Statement made;
    if (word == "if") {
      made.kind = Statement::Kind::choice;
      made.parts.push_back(parser.tuple());
      parser.require_end();
      for (;;) {
        made.bodies.push_back(body({"elif", "else", "endif"}));
        if (end_ == "endif") break;
        if (end_ == "elif") {
          made.parts.push_back(rest_->tuple());
          continue;
        }
        made.bodies.push_back(body({"endif"}));
        break;
      }
    } else if (word == "for") {
      made.kind = Statement::Kind::loop;
      do made.names.push_back(parser.need_name());
      while (parser.accept_sign(","));
      parser.need_word("in");
      made.parts.push_back(parser.disjunction());
      if (parser.accept_word("if")) made.only_if = parser.expression();
      parser.require_end();
      made.bodies.push_back(body({"else", "endfor"}));
      if (end_ == "else") made.bodies.push_back(body({"endfor"}));
    } else if (word == "set") {
      made.kind = Statement::Kind::set;
      do made.names.push_back(parser.need_name());
      while (parser.accept_sign(","));
      if (parser.accept_sign(".")) made.text = parser.need_name();
      if (parser.accept_sign("=")) {
        made.parts.push_back(parser.tuple());
      } else {
        made.bodies.push_back(body({"endset"}));
      }
      parser.require_end();
    } else if (word == "macro") {
      made.kind = Statement::Kind::macro;
      made.text = parser.need_name();
      parser.need_sign("(");
      while (!parser.accept_sign(")")) {
        made.names.push_back(parser.need_name());
        made.parts.push_back(parser.accept_sign("=") ? parser.expression() : nullptr);
        if (!parser.accept_sign(",") && !parser.sign_follows(")")) parser.unexpected();
      }
      parser.require_end();
      made.bodies.push_back(body({"endmacro"}));
    } else if (word == "filter") {
      made.kind = Statement::Kind::filter;
      made.text = parser.need_name();
      parser.require_end();
      made.bodies.push_back(body({"endfilter"}));
    } else if (word == "generation") {
      made.kind = Statement::Kind::group;
      made.bodies.push_back(body({"endgeneration"}));
    } else if (word == "break" || word == "continue") {
      made.kind = word == "break" ? Statement::Kind::leave : Statement::Kind::next;
      parser.require_end();
    } else {
      fail(fmt::format("has the tag '{}' in line {}, which is unknown here", word, line));
    }
    return made;
  }

  std::vector<Segment> segments_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string end_;
  std::unique_ptr<ExpressionParser> rest_;
};

}  // namespace

Program parse(std::string_view source) {
  return Parser(source).whole();
}

}  // namespace choir::jinja
