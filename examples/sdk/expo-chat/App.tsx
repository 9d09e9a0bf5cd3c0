/** A chat that is typed or spoken. */

import { useChat, useLiveTranscript } from "@svc/client/react";
import { useEffect, useRef, useState } from "react";
import { Button, FlatList, KeyboardAvoidingView, StyleSheet, Text, TextInput, View } from "react-native";
import { client } from "./client";
import { useMicrophone } from "./microphone";

export function App() {
  const [text, setText] = useState("");
  const source = useMicrophone();
  const chat = useChat({ client, system: "Answer briefly." });
  const speech = useLiveTranscript({ client, source });
  const sent = useRef(0);
  const isListening = speech.state !== "idle";

  // What was said becomes a message when the microphone is off.
  useEffect(() => {
    if (isListening || sent.current === speech.finals.length) return;
    const said = speech.finals.slice(sent.current).join(" ");
    sent.current = speech.finals.length;
    void chat.send(said);
  }, [isListening, speech.finals, chat]);

  const send = (): void => {
    if (!text.trim()) return;
    setText("");
    void chat.send(text);
  };
  const error = chat.error ?? speech.error;

  return (
    <KeyboardAvoidingView style={styles.screen} behavior="padding">
      <FlatList
        data={chat.messages}
        keyExtractor={(_, index) => String(index)}
        renderItem={({ item }) => <Text style={item.role === "user" ? styles.question : styles.answer}>{item.content}</Text>}
      />
      {isListening && <Text style={styles.partial}>{speech.partial || "Speak now."}</Text>}
      {error && <Text role="alert" style={styles.error}>{error.message}</Text>}
      <View style={styles.row}>
        <TextInput style={styles.input} value={text} onChangeText={setText} onSubmitEditing={send} placeholder="Message" editable={!chat.isStreaming} />
        {chat.isStreaming ? <Button title="Stop" onPress={chat.stop} /> : <Button title="Send" onPress={send} />}
        <Button title={isListening ? "Done" : "Talk"} onPress={() => void (isListening ? speech.stop() : speech.start())} disabled={chat.isStreaming} />
      </View>
    </KeyboardAvoidingView>
  );
}

const styles = StyleSheet.create({
  screen: { flex: 1, padding: 16, paddingTop: 64 },
  question: { alignSelf: "flex-end", padding: 8, fontWeight: "bold" },
  answer: { padding: 8 },
  partial: { padding: 8, fontStyle: "italic" },
  error: { padding: 8, color: "#b00020" },
  row: { flexDirection: "row", alignItems: "center", gap: 8 },
  input: { flex: 1, borderWidth: 1, borderRadius: 8, padding: 8 },
});
