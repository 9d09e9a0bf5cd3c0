"""Compares the gateway's token estimate with a tokenizer's count, for several kinds of text.

python bench/estimates.py --vocabulary o200k_base     needs the package bpe-openai, which includes OpenAI's vocabularies
SVC_API_KEY=… python bench/estimates.py --gateway http://127.0.0.1:3000/v1 --model smollm2-135m
                                                      compares with the usage that the model's provider reports
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from svc.dialects.token_estimate import estimate_prompt_tokens

ROOT = Path(__file__).parent.parent
PROSE = {
    "German": "Ein Gateway steht zwischen den Anwendungen und den Anbietern. Es prüft die Schlüssel, zählt die Token und "
    "schreibt auf, was jede Anfrage gekostet hat. Fällt ein Anbieter aus, so geht die Anfrage an den nächsten, ohne dass "
    "die Anwendung etwas davon merkt. Größere Verzögerungen werden außerdem früh erkannt und gemeldet.",
    "Russian": "Шлюз стоит между приложениями и поставщиками моделей. Он проверяет ключи, считает токены и записывает, "
    "сколько стоил каждый запрос. Если поставщик не отвечает, запрос уходит к следующему, и приложение этого не замечает. "
    "Большие задержки обнаруживаются рано, и о них сообщается дежурному.",
    "Chinese": "网关位于应用程序和模型提供商之间。它检查密钥,统计令牌数量,并记录每个请求的费用。如果某个提供商发生故障,"
    "请求会转发到下一个提供商,应用程序不会察觉。较大的延迟会被及早发现并上报给值班人员。所有数据都保存在本地的数据库中。",
    "Japanese": "ゲートウェイはアプリケーションとモデルの提供者の間に立ちます。キーを確認し、トークンを数え、それぞれのリクエストの費用を"
    "記録します。提供者が応答しないときは、リクエストは次の提供者に送られ、アプリケーションは気づきません。",
    "Arabic": "تقف البوابة بين التطبيقات ومزودي النماذج. تتحقق من المفاتيح وتحسب الرموز وتسجل تكلفة كل طلب. إذا تعطل أحد "
    "المزودين ينتقل الطلب إلى المزود التالي دون أن يلاحظ التطبيق ذلك. وتكتشف التأخيرات الكبيرة مبكرا.",
    "Hindi": "गेटवे अनुप्रयोगों और मॉडल प्रदाताओं के बीच खड़ा होता है। यह कुंजियों की जाँच करता है, टोकन गिनता है और हर अनुरोध की लागत लिखता है। "
    "यदि कोई प्रदाता विफल होता है तो अनुरोध अगले प्रदाता के पास जाता है।",
    "Bengali": "গেটওয়ে অ্যাপ্লিকেশন এবং মডেল সরবরাহকারীদের মাঝে দাঁড়িয়ে থাকে। এটি চাবি পরীক্ষা করে, টোকেন "
    "গণনা করে এবং প্রতিটি অনুরোধের খরচ লিখে রাখে। কোনো সরবরাহকারী ব্যর্থ হলে অনুরোধটি পরেরটির কাছে যায়।",
    "Tamil": "இந்த நுழைவாயில் பயன்பாடுகளுக்கும் மாதிரி வழங்குநர்களுக்கும் இடையில் நிற்கிறது. இது சாவிகளைச் "
    "சரிபார்த்து, ஒவ்வொரு கோரிக்கையின் செலவையும் எழுதி வைக்கிறது. ஒரு வழங்குநர் செயலிழந்தால் கோரிக்கை "
    "அடுத்தவரிடம் செல்கிறது.",
    "Thai": "เกตเวย์อยู่ระหว่างแอปพลิเคชันกับผู้ให้บริการโมเดล ตรวจสอบคีย์ นับโทเค็น "
    "และบันทึกค่าใช้จ่ายของทุกคำขอ หากผู้ให้บริการล้มเหลว คำขอจะไปยังรายถัดไป",
    "emoji": "Great work 🎉🎉 see you soon 👋🏽 and bring cake 🍰🍓 for the team 👩‍💻👨‍💻 ✅✅ done! 🚀🚀🚀",
}


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def tools(count: int) -> list[dict[str, Any]]:
    fields = {
        "city": {"type": "string", "description": "The name of the city, as people there write it"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14, "description": "How many days ahead"},
        "units": {"type": "string", "enum": ["metric", "imperial"]},
    }
    parameters = {"type": "object", "properties": fields, "required": ["city"]}
    about = "Gives the weather forecast of a city for the next days, with temperature, wind and rain."
    return [
        {"type": "function", "function": {"name": f"get_weather_{n}", "description": about, "parameters": parameters}}
        for n in range(count)
    ]


def samples() -> dict[str, dict[str, Any]]:
    code = (ROOT / "src" / "svc" / "gateway" / "routing" / "router.py").read_text()
    rows = [
        {"id": n, "name": f"item {n}", "price": n * 1.25, "tags": ["a", "b"], "in_stock": n % 2 == 0} for n in range(40)
    ]
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"Yes, number {n} is fine."} for n in range(20)]
    return {
        "one word": {"messages": user("Hi")},
        "English": {"messages": user((ROOT / "docs" / "explanation" / "resilience.md").read_text()[:3000])},
        "Python": {"messages": user(code)},
        "JSON as text": {"messages": user(json.dumps(rows))},
        "20 short turns": {"messages": talk},
        "5 tools": {"messages": user("Will it rain in Oslo?"), "tools": tools(5)},
        **{name: {"messages": user(text * 3)} for name, text in PROSE.items()},
    }


def vocabulary(name: str) -> Callable[[dict[str, Any]], int]:
    """Count as OpenAI documents it: 3 tokens per message beside role and text, and 3 to start the response."""
    encoding = importlib.import_module("bpe_openai").get_encoding(name)

    def count(request: dict[str, Any]) -> int:
        texts = [part for message in request["messages"] for part in (message["role"], message["content"])]
        texts += [json.dumps(tool["function"], separators=(",", ":")) for tool in request.get("tools", ())]
        return sum(len(encoding.encode(text)) for text in texts) + 3 * len(request["messages"]) + 3

    return count


def provider_usage(url: str) -> Callable[[dict[str, Any]], int]:
    """Return a counter that uses the provider's reported usage."""

    def count(request: dict[str, Any]) -> int:
        headers = {"authorization": f"Bearer {os.environ['SVC_API_KEY']}"}
        body = json.dumps({**request, "max_tokens": 1}, ensure_ascii=False).encode()
        request_ = urllib.request.Request(f"{url}/chat/completions", body, headers)
        with urllib.request.urlopen(request_, timeout=120) as answer:
            return int(json.load(answer)["usage"]["prompt_tokens"])

    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary")
    parser.add_argument("--gateway")
    parser.add_argument("--model", default="gpt-4o-mini")
    args = parser.parse_args()
    count = vocabulary(args.vocabulary) if args.vocabulary else provider_usage(args.gateway)
    print(f"{'':<16} {'bytes':>6} {'tokens':>7} {'estimate':>9} {'error':>7} {'escaped':>8} {'error':>7}")
    for name, sample in samples().items():
        request = {"model": args.model, **sample}
        raw = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()
        escaped = json.dumps(request).encode()
        try:
            real = count(request)
        except urllib.error.HTTPError as error:
            print(f"{name:<16} {len(raw):>6} {error.code}")
            continue
        guesses = [
            (guess := estimate_prompt_tokens(body), f"{100 * (guess - real) / real:+.0f} %") for body in (raw, escaped)
        ]
        print(f"{name:<16} {len(raw):>6} {real:>7} " + " ".join(f"{guess:>8} {error:>8}" for guess, error in guesses))
    text = json.dumps({"messages": user("A line of text.\n" * 4000)}).encode()
    began = time.perf_counter()
    for _ in range(100):
        estimate_prompt_tokens(text)
    print(f"cost: {(time.perf_counter() - began) / 100 * 1e6:.1f} µs for {len(text) // 1024} KiB")


if __name__ == "__main__":
    main()
