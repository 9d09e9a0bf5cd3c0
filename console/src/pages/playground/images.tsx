/** The images of an answer. Only data URLs are shown: the page loads nothing from other hosts. */

const SHOWN = /^data:image\//i;
const LINKED = /^https?:\/\//i;

export function AnswerImages({ images, model }: { images: string[]; model: string }) {
  if (!images.length) return null;
  return (
    <ul class="answer-images" aria-label={`Images of ${model}`}>
      {images.map((url, index) => <li key={index}><AnswerImage url={url} number={index + 1} model={model} /></li>)}
    </ul>
  );
}

function AnswerImage({ url, number, model }: { url: string; number: number; model: string }) {
  if (SHOWN.test(url)) return <img src={url} alt={`Image ${number} of ${model}`} />;
  if (LINKED.test(url)) return <a href={url} target="_blank" rel="noopener noreferrer">Image {number} at {hostOf(url)}</a>;
  return <p class="hint">{url ? `Image ${number} cannot be shown.` : `This browser did not keep image ${number}.`}</p>;
}

function hostOf(url: string): string {
  try {
    return new URL(url).host;
  } catch {
    return "another host"; // the model wrote the address wrongly
  }
}
