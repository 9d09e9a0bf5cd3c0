/** The models of the page, from the list of models. Those of the gateway's machine come first. */
import { ApiError, get } from "../../api/client";

export interface SpeechChoices {
  transcription: string[];
  /** The languages of transcription models on the gateway's machine. A model without languages is not in it. */
  languages: Record<string, string[]>;
  voices: string[];
  chat: string[];
}

export async function loadSpeechChoices(signal: AbortSignal): Promise<SpeechChoices> {
  const [list, catalog] = await Promise.all([
    get("/v1/models", undefined, signal),
    // A key without the scope `speech` sees no languages.
    get("/v1/audio/voices", undefined, signal).catch((error: unknown) => {
      if (!(error instanceof ApiError)) throw error;
      return null;
    }),
  ]);
  const choices: SpeechChoices = { transcription: [], languages: {}, voices: [], chat: [] };
  for (const { model, languages } of catalog?.transcription_models ?? []) {
    if (languages.length) choices.languages[model] = languages;
  }
  const isLocal = (model: { owned_by: string }): number => (model.owned_by === "local" ? 0 : 1);
  for (const model of list.data.toSorted((a, b) => isLocal(a) - isLocal(b))) {
    if (model.kind === "transcription") choices.transcription.push(model.id);
    else if (model.kind === "speech") choices.voices.push(model.id);
    else if (model.kind === undefined) choices.chat.push(model.id);
  }
  return choices;
}
